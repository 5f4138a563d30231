"""The process at the other end of the line: one that we start and that ends with us, or one that stands by itself."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

from roboloop.core.child import START_S, Child
from roboloop.core.errors import ConfigError, DataError, RobotFault
from roboloop.envs.panda.admission import read_token, token_path
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.link import HOST, LONGEST, Garbled, Unpacker, pack, shown, whole_number
from roboloop.envs.panda.robot import ConnectionCut, DriverDied
from roboloop.envs.panda.suite import PandaEnvConfig

ANSWER_S = 5.0
"""Patience with what is answered, such as the start of the controller."""
KNOCK_S = 0.05
ATTEMPTS = 3
"""A rig that is flooded with strangers may send one of us away among them."""


class Line(NamedTuple):
    """A connection that was let in, and what the driver said of itself."""

    socket: socket.socket
    unpacker: Unpacker
    task: str
    pid: int


class Driver(Protocol):
    """What is known of a driver from outside."""

    port: int

    def call(self) -> Line:
        """Return a line to a driver that runs; the arm is not taken by it."""
        ...

    def ending(self) -> str:
        """Return how the driver ended, or nothing where it seems to live."""
        ...

    def give_up(self) -> None:
        """It does not answer: see to it that the next call finds another, if that can be done from here."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class OwnDriver:
    """A child of ours."""

    def __init__(self, task: str, cfg: PandaConfig) -> None:
        self._token = secrets.token_hex(16)
        self._job = {"task": task, "faults": [asdict(plan) for plan in cfg.faults], "watchdog_s": cfg.watchdog_s}
        self._child: Child | None = None
        self.port = 0

    def call(self) -> Line:
        """Start the driver unless it runs."""
        if self._child is None or not self._child.is_alive():
            self._launch()
        try:
            return _introduce(_dial(self.port), self._token)
        except TimeoutError:
            self.give_up()
            raise DriverDied(f"the driver gave no answer in {ANSWER_S:g} s: who it is") from None
        except (OSError, Garbled) as error:
            raise ConnectionCut(f"the driver does not let us in: {error}") from None

    def _launch(self) -> None:
        self.close()
        self._child = Child("panda driver", "roboloop.envs.panda.server:main")
        try:
            self._child.channel.send({**self._job, "token": self._token})
            if not self._child.channel.connection.poll(START_S):
                raise DriverDied(f"the driver did not start in {START_S:g} s\n{self._child.where_it_hangs()}")
            self.port = int(self._child.channel.receive()["port"])
        except (EOFError, OSError):
            raise DriverDied(f"the driver {self._child.how_it_ended()}") from None

    def ending(self) -> str:
        """Return signal or exit code."""
        assert self._child is not None
        return "" if self._child.is_alive() else f"the driver (pid {self._child.pid}) {self._child.how_it_ended()}"

    def give_up(self) -> None:
        """Kill it."""
        assert self._child is not None
        self._child.kill()

    def close(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop()
            self._child = None


class StandingDriver:
    """A rig that was there before us and stays after us (``roboloop rig``)."""

    def __init__(self, task: str, cfg: PandaConfig) -> None:
        self._task, self.port = task, cfg.port
        self._where = f"{HOST}:{cfg.port}"
        self._was_there = False

    def call(self) -> Line:
        """Reach it; one that was never there is the user's to mend, one that went away is a fault."""
        try:
            line = self._let_in(ATTEMPTS)
        except RobotFault as fault:
            if self._was_there:
                raise
            raise ConfigError(f"env.panda.address: {fault}") from None
        if line.task != self._task:
            line.socket.close()
            raise ConfigError(f"env.id asks for panda/{self._task}, but the rig on {self._where} is panda/{line.task}")
        self._was_there = True
        return line

    def _let_in(self, attempts: int) -> Line:
        try:
            connection = _dial(self.port)
        except OSError as error:
            start = f"'roboloop rig panda/{self._task} --port {self.port}' starts a rig there"
            raise DriverDied(f"nobody answers on {self._where} ({error.strerror or error}); {start}") from None
        path = token_path(self.port)
        try:
            token = read_token(path)  # each time: a rig that was started anew has another one
        except (OSError, ValueError, DataError) as error:
            connection.close()
            said = f"{path}: not a token" if isinstance(error, ValueError) else str(error)
            said = f"{path}: {error.strerror}" if isinstance(error, OSError) else said
            raise ConnectionCut(f"no token for what listens on {self._where}: {said}") from None
        try:
            return _introduce(connection, token)
        except TimeoutError:
            raise DriverDied(f"the rig on {self._where} gave no answer in {ANSWER_S:g} s") from None
        except ConnectionError:
            if attempts > 1:
                return self._let_in(attempts - 1)
            raise ConnectionCut(f"the rig on {self._where} does not take the token in {path}") from None
        except (OSError, Garbled) as error:
            raise ConnectionCut(f"what listens on {self._where} is no rig: {error}") from None

    def ending(self) -> str:
        """Knock: where nobody listens any more, there is nobody."""
        try:
            socket.create_connection((HOST, self.port), timeout=KNOCK_S).close()
        except ConnectionRefusedError:
            return f"the rig is gone: nobody listens on {self._where} any more"
        except OSError:
            return ""
        return ""

    def give_up(self) -> None:
        """Nothing: it is not ours to end."""

    def close(self) -> None:
        """Nothing: it stays."""


def driver(task: str, cfg: PandaConfig) -> Driver:
    """Return the driver of a config: the one at its address, or one of our own."""
    return StandingDriver(task, cfg) if cfg.address else OwnDriver(task, cfg)


def check_reachable(task: str, cfg: PandaEnvConfig) -> None:
    """Refuse an address at which this task cannot be trained; whoever is at work there is not disturbed."""
    if cfg.panda.address:
        StandingDriver(task, cfg.panda).call().socket.close()


def _dial(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=ANSWER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _introduce(connection: socket.socket, token: str) -> Line:
    """Show the token and hear what is driven; ConnectionError if it is not taken."""
    try:
        return Line(connection, *_greeting(connection, token))
    except Exception:
        connection.close()
        raise


def _greeting(connection: socket.socket, token: str) -> tuple[Unpacker, str, int]:
    unpacker, deadline_s = Unpacker(), time.monotonic() + ANSWER_S
    said: list[Any] = []
    connection.sendall(pack({"token": token}))
    while not said:
        if (left_s := deadline_s - time.monotonic()) <= 0:  # of all, not of each byte
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(LONGEST)
        if not data:
            raise ConnectionResetError("it hung up")
        said = unpacker.feed(data)
    about = said[0]
    if not isinstance(about, dict) or not isinstance(about.get("task"), str):
        raise Garbled("it does not say what it drives")
    return unpacker, shown(about["task"]), whole_number(about, "pid")
