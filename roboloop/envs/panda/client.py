"""A ``Robot`` whose driver is another process; a thread takes its states in, so that reading never waits."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.drivers import ANSWER_S, driver
from roboloop.envs.panda.features import features
from roboloop.envs.panda.link import Garbled, Unpacker, command_to_data, pack, reading_from_data
from roboloop.envs.panda.tasks import TABLE
from roboloop.envs.robot import Command, ConnectionCut, DriverDied, Reading, Robot, RobotFault

SEND_S = 0.2
DEATH_S = 0.05
"""When the line breaks, the driver is given so long to be found dead."""


class ProcessPanda(Robot):
    """The simulated rig on the wall clock, in a process that ends with this one or stands by itself."""

    def __init__(self, task: str, cfg: PandaConfig) -> None:
        self.features = features(TABLE[task])
        self.pid = 0
        """Process id of the driver that we are or were connected to."""
        self._driver = driver(task, cfg)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        self._newest: Reading | None = None
        self._done = self._number = 0
        self._fault: RobotFault | None = ConnectionCut("the driver is not connected")

    def connect(self) -> None:
        """Reach the driver, take the arm and listen; another client's hand is off it then."""
        self._hang_up()
        line, unpacker, _, self.pid = self._driver.call()
        line.settimeout(SEND_S)
        self._socket, self._fault, self._newest = line, None, None
        self._done = self._number = 0
        self._thread = threading.Thread(target=self._listen, args=(line, unpacker), name="panda-readings", daemon=True)
        self._thread.start()
        self._say({"do": "take"})
        self._wait(lambda: self._newest is not None, "the first reading")

    def _listen(self, line: socket.socket, unpacker: Unpacker) -> None:
        """Keep the newest state; when the line ends, find out why."""
        why = "it was closed"
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
        deadline_s = time.monotonic() + DEATH_S
        while not (ending := self._driver.ending()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return DriverDied(ending) if ending else ConnectionCut(f"the line to the driver broke: {said}")

    def _wait(self, until: Any, what: str) -> None:
        with self._news:
            has_come = self._news.wait_for(lambda: self._fault is not None or until(), ANSWER_S)
        if not has_come:
            self._driver.give_up()
            raise DriverDied(f"the driver gave no answer in {ANSWER_S:g} s: {what}")
        self._alive()

    def _alive(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    def now_s(self) -> float:
        """Return the time; every driver is on this machine and has the same clock."""
        return time.monotonic()

    def read(self) -> Reading:
        """Return the newest state that has arrived."""
        self._alive()
        assert self._newest is not None
        return self._newest

    def _say(self, message: dict[str, Any]) -> None:
        self._alive()
        assert self._socket is not None
        try:
            self._socket.sendall(pack(message))
        except OSError as error:
            self._fault = self._why(str(error))
            raise self._fault from None

    def _tell(self, wish: str, **what: Any) -> int:
        self._number += 1
        self._say({"do": wish, "number": self._number, **what})
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
        self._fault = ConnectionCut("the driver is not connected")
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Hold, hang up, and end the driver if it is ours."""
        with contextlib.suppress(RobotFault):
            self.hold()
        self._hang_up()
        self._driver.close()
