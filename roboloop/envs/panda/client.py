"""A ``Robot`` whose driver is another process: reading takes what has arrived, and never waits."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from roboloop.core.errors import RobotFault
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.drivers import ANSWER_S, driver
from roboloop.envs.panda.features import features
from roboloop.envs.panda.link import Garbled, Unpacker, command_to_data, pack, reading_from_data, shown, whole_number
from roboloop.envs.panda.robot import Command, ConnectionCut, DriverDied, Reading, Robot
from roboloop.envs.panda.tasks import TABLE

SEND_S = 0.2
DEATH_S = 0.05
"""When the line breaks, the driver is given so long to be found dead."""
AT_ONCE = 1 << 23
"""Bytes that are taken in at once: more than a minute of states."""
AHEAD_S = 1.0
"""A driver's clock is ours; what is further ahead of it is no time."""


class ProcessPanda(Robot):
    """The simulated rig on the wall clock, in a process that ends with this one or stands by itself."""

    def __init__(self, task: str, cfg: PandaConfig) -> None:
        self.features = features(TABLE[task])
        self.pid = 0
        """Process id of the driver that we are or were connected to."""
        self._driver = driver(task, cfg)
        self._socket: socket.socket | None = None
        self._arrival = select.poll()  # select() ends at descriptor 1023, and a trainer may have more files open
        self._unpacker = Unpacker()
        self._arrived = bytearray()
        self._newest: Reading | None = None
        self._done = self._number = 0
        self._fault: RobotFault | None = ConnectionCut("the driver is not connected")

    def connect(self) -> None:
        """Reach the driver, take the arm and listen; another client's hand is off it then."""
        self._hang_up()
        self._socket, self._unpacker, _, self.pid = self._driver.call()
        self._socket.settimeout(SEND_S)
        self._arrival = select.poll()
        self._arrival.register(self._socket, select.POLLIN)
        self._fault, self._newest, self._arrived = None, None, bytearray()
        self._done = self._number = 0
        self._say({"do": "take"})
        self._wait(lambda: self._newest is not None, "the first reading")

    def _receive(self, patience_s: float) -> None:
        """Take in what has arrived, or arrives within so long; it is understood when it is asked for."""
        assert self._socket is not None
        try:
            while len(self._arrived) < AT_ONCE and self._arrival.poll(patience_s * 1000.0):
                data = self._socket.recv(1 << 20)
                if not data:
                    raise OSError("it was closed")
                self._arrived += data
                patience_s = 0.0
        except OSError as error:
            self._fault = self._why(str(error))

    def _understand(self) -> None:
        """Keep the newest state of what has been taken in."""
        data, self._arrived = self._arrived, bytearray()
        try:
            message = self._unpacker.feed_for_newest(data)
            if message is not None:
                self._take_over(message)
        except Garbled as error:
            self._fault = self._why(str(error))

    def _take_over(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise Garbled("a message is a mapping")
        if "refused" in message:
            self._fault = ConnectionCut(f"the driver hung up: {shown(message['refused'])}")
            return
        reading = reading_from_data(message.get("reading"))
        if reading.arm_time_s > self.now_s() + AHEAD_S:
            raise Garbled("a reading has a time that has not come yet")
        self._newest, self._done = reading, whole_number(message, "done")

    def _why(self, said: str) -> RobotFault:
        deadline_s = time.monotonic() + DEATH_S
        while not (ending := self._driver.ending()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return DriverDied(ending) if ending else ConnectionCut(f"the line to the driver broke: {said}")

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + ANSWER_S
        while not until():
            left_s = deadline_s - time.monotonic()
            if left_s < 0:
                self._driver.give_up()
                raise DriverDied(f"the driver gave no answer in {ANSWER_S:g} s: {what}")
            self._receive(left_s)
            self._understand()  # first: the last words may say why the line broke
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
        self._receive(0.0)
        self._understand()
        self._alive()
        assert self._newest is not None
        return self._newest

    def _say(self, message: dict[str, Any]) -> None:
        self._alive()
        assert self._socket is not None
        try:
            self._socket.sendall(pack(message))
        except OSError as error:
            self._receive(0.0)
            self._understand()
            self._fault = self._fault or self._why(str(error))
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
        """Wait, and take in what arrives meanwhile."""
        deadline_s = time.monotonic() + duration_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self._fault is None:
                self._receive(left_s)
                self._understand()  # now rather than at the look, when an action waits for it
            else:
                time.sleep(left_s)  # it is said at the next look

    def _hang_up(self) -> None:
        line, self._socket = self._socket, None
        self._fault = ConnectionCut("the driver is not connected")
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def close(self) -> None:
        """Hold, hang up, and end the driver if it is ours."""
        with contextlib.suppress(RobotFault):
            self.hold()
        self._hang_up()
        self._driver.close()
