"""A ``Robot`` whose driver is another process; a thread takes its states in, so that reading never waits."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from dataclasses import asdict
from typing import Any

from roboloop.core.child import START_S, Child
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.features import features
from roboloop.envs.panda.link import Garbled, Unpacker, command_to_data, pack, reading_from_data
from roboloop.envs.panda.server import HOST
from roboloop.envs.panda.tasks import TABLE
from roboloop.envs.robot import Command, ConnectionCut, DriverDied, Reading, Robot, RobotFault

ANSWER_S = 5.0
"""Patience with what is answered, such as the start of the controller."""
SEND_S = 0.2
DEATH_S = 0.05
"""When the line breaks, the driver is given so long to be found dead."""


class ProcessPanda(Robot):
    """The simulated rig on the wall clock, in a process that ends with this one."""

    def __init__(self, task: str, cfg: PandaConfig) -> None:
        self.features = features(TABLE[task])
        self._token = secrets.token_hex(16)
        self._job = {"task": task, "faults": [asdict(plan) for plan in cfg.faults], "watchdog_s": cfg.watchdog_s}
        self._child: Child | None = None
        self._port = 0
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        self._newest: Reading | None = None
        self._done = self._number = 0
        self._fault: RobotFault | None = ConnectionCut("the driver is not connected")

    @property
    def pid(self) -> int:
        """The driver's process id."""
        assert self._child is not None
        return self._child.pid

    def connect(self) -> None:
        """Start the driver unless it runs, and listen to it."""
        self._hang_up()
        if self._child is None or not self._child.is_alive():
            self._launch()
        try:
            line = socket.create_connection((HOST, self._port), timeout=ANSWER_S)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(SEND_S)
            line.sendall(pack({"token": self._token}))
        except OSError as error:
            raise ConnectionCut(f"the driver does not let us in: {error}") from None
        self._socket, self._fault, self._newest = line, None, None
        self._thread = threading.Thread(target=self._listen, args=(line,), name="panda-readings", daemon=True)
        self._thread.start()
        self._wait(lambda: self._newest is not None, "the first reading")

    def _launch(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = Child("panda driver", "roboloop.envs.panda.server:main")
        self._child.channel.send({**self._job, "token": self._token})
        self._done = self._number = 0
        try:
            if not self._child.channel.connection.poll(START_S):
                raise DriverDied(f"the driver did not start in {START_S:g} s\n{self._child.where_it_hangs()}")
            self._port = int(self._child.channel.receive()["port"])
        except (EOFError, OSError):
            raise DriverDied(f"the driver {self._child.how_it_ended()}") from None

    def _listen(self, line: socket.socket) -> None:
        """Keep the newest state; when the line ends, find out why."""
        unpacker, why = Unpacker(), "it was closed"
        try:
            while self._socket is line:
                try:
                    data = line.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                messages = unpacker.feed(data)
                if messages:
                    with self._news:
                        self._newest, self._done = reading_from_data(messages[-1]["reading"]), messages[-1]["done"]
                        self._news.notify_all()
        except (OSError, Garbled) as error:
            why = str(error)
        if self._socket is line:  # we did not hang up ourselves
            fault = self._why(why)
            with self._news:
                self._fault = fault
                self._news.notify_all()

    def _why(self, said: str) -> RobotFault:
        assert self._child is not None
        deadline_s = time.monotonic() + DEATH_S
        while self._child.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        if self._child.is_alive():
            return ConnectionCut(f"the line to the driver broke: {said}")
        return DriverDied(f"the driver (pid {self._child.pid}) {self._child.how_it_ended()}")

    def _wait(self, until: Any, what: str) -> None:
        with self._news:
            has_come = self._news.wait_for(lambda: self._fault is not None or until(), ANSWER_S)
        if not has_come:
            assert self._child is not None
            self._child.kill()  # so that the next connection finds a new one
            raise DriverDied(f"the driver gave no answer in {ANSWER_S:g} s: {what}")
        self._alive()

    def _alive(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    def now_s(self) -> float:
        """Return the time; the driver is on this machine and has the same clock."""
        return time.monotonic()

    def read(self) -> Reading:
        """Return the newest state that has arrived."""
        self._alive()
        assert self._newest is not None
        return self._newest

    def _tell(self, wish: str, **what: Any) -> int:
        self._alive()
        assert self._socket is not None
        self._number += 1
        try:
            self._socket.sendall(pack({"do": wish, "number": self._number, **what}))
        except OSError as error:
            self._fault = self._why(str(error))
            raise self._fault from None
        return self._number

    def _ask(self, wish: str, **what: Any) -> None:
        number = self._tell(wish, **what)
        self._wait(lambda: self._done >= number, wish)

    def send(self, command: Command) -> None:
        """Send a command."""
        self._tell("send", command=command_to_data(command))

    def hold(self) -> None:
        """Tell the driver to stay."""
        self._tell("hold")

    def prepare(self, seed: int) -> None:
        """Let the driver place goal and puck; arm, drawer and door stay as they are."""
        self._ask("prepare", seed=seed)

    def start(self) -> None:
        """Start the controller."""
        self._ask("start")

    def advance(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)

    def _hang_up(self) -> None:
        line, self._socket = self._socket, None
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Hold, hang up, and end the driver."""
        with contextlib.suppress(RobotFault):
            self.hold()
        self._hang_up()
        self._fault = ConnectionCut("the driver is not connected")
        if self._child is not None:
            self._child.stop()
            self._child = None
