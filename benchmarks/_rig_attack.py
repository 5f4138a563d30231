"""Attackers of ``rig_fuzz.py``: each runs in a process of its own, and says what it did and saw as JSON."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roboloop.envs.panda.guests import KNOWN, STRANGERS
from roboloop.envs.panda.link import LONGEST, Garbled, Unpacker, command_to_data, pack
from roboloop.envs.panda.robot import Command

WATCHDOG_S, FLOOD_S = 0.3, 5.0
LIMIT_S = 300.0
"""An attack takes no longer."""
AWAY, DOWN = np.array([0.45, 0.12, 0.45]), np.array([0.0, 1.0, 0.0, 0.0])


# ---- frames and what is done to them ----


def moving(number: int, pos_m: Any = AWAY) -> dict[str, Any]:
    return {"do": "send", "number": number, "command": command_to_data(Command(np.asarray(pos_m, float), DOWN))}


WISHES = (
    moving(2),
    {"do": "hold", "number": 3},
    {"do": "start", "number": 4},
    {"do": "prepare", "number": 5, "seed": 7},
)
ODD = (
    float("nan"), float("inf"), -float("inf"), 10**400, -1, 0, 1 << 63, 1e308, -0.5, True, None, "", "x" * 3000,
    "\x1b[2J", "\x00", [], {}, [[]], [1e300] * 3, ["0.4"] * 3, [[0.0] * 3] * 3, {"__tensor__": "a"},
    np.zeros(3), np.zeros((2, 2)),
)  # fmt: skip
KINDS = ("O", "|O", "V8", "<f8", "<U9", "|S5", "<M8[s]", "f8,f8", "(9999999,)f8", "object", "<f16", "", None, [], 7)
SHAPES = ([300_000_000], [-1], [1 << 62, 4], [10**400], [1] * 64, [0, 1 << 62], [1.5], [True], "3", None, [[1]])


def raw(header: bytes, behind: bytes = b"") -> bytes:
    body = len(header).to_bytes(8, "little") + header + behind
    return len(body).to_bytes(4, "little") + body


def flipped(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def mislength(frame: bytes, rng: random.Random) -> bytes:
    sizes = (0, 1, 8, len(frame) - 5, len(frame) + 1, LONGEST, LONGEST + 1, 1 << 16, 1 << 31, (1 << 32) - 1)
    inner = (0, 1, len(frame), 1 << 31, (1 << 64) - 1)
    if rng.random() < 0.5:
        return rng.choice(sizes).to_bytes(4, "little") + frame[4:]
    return frame[:4] + rng.choice(inner).to_bytes(8, "little") + frame[12:]


def odd_value(message: dict[str, Any], rng: random.Random) -> bytes:
    """Return the message with one value, at any depth, that is not what it should be."""
    message = {**message, "command": dict(message["command"])} if "command" in message else dict(message)
    place = rng.choice([message, message.get("command", message)])
    place[rng.choice([*place, "other"])] = rng.choice(ODD)
    if rng.random() < 0.2:
        del place[rng.choice(list(place))]
    return pack(message)


def deep(rng: random.Random) -> bytes:
    size = rng.choice((40, 65, 500, 3_000, 60_000))
    return raw(rng.choice((b"[", b'{"a":', b'{"tree":[', b'[{"a":')) * size)


def odd_array(message: dict[str, Any], rng: random.Random) -> bytes:
    about = [["a", rng.choice(KINDS), rng.choice(SHAPES)]] * rng.choice((1, 1, 2, 8))
    tree = {**message, rng.choice([*message]): {"__tensor__": "a", **rng.choice(({}, {"__dtype__": "O"}))}}
    return raw(json.dumps({"arrays": about, "tree": tree}).encode(), rng.randbytes(rng.choice((0, 8, 24, 1000))))


def mutated(message: dict[str, Any], rng: random.Random) -> bytes:
    """Return a frame that is nearly one."""
    frame, how = pack(message), rng.randrange(8)
    if how == 0:
        return flipped(frame, rng)
    if how == 1:
        return frame[: rng.randrange(1, len(frame))]
    if how == 2:
        return mislength(frame, rng)
    if how == 3:
        return deep(rng)
    if how == 4:
        return odd_array(message, rng)
    if how == 5:
        return rng.randbytes(rng.choice((1, 4, 40, 4_000, 100_000)))
    if how == 6:
        return flipped(frame, rng) + frame * rng.choice((1, 40))
    return odd_value(message, rng)


# ---- attackers ----


@dataclass
class Attack:
    """What an attacker knows, and what it reports."""

    port: int
    token: str
    count: int
    rng: random.Random
    report: dict[str, Any] = field(
        default_factory=lambda: {"done": 0, "late_ms": 0.0, "watchdog_ms": [], "strange": []}
    )

    def dial(self, *frames: bytes) -> socket.socket:
        """Connect, and say something."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        with contextlib.suppress(ConnectionError, TimeoutError):
            line.sendall(b"".join(frames))
        return line

    def known(self, *frames: bytes) -> socket.socket:
        """Connect with the token, and say something."""
        line = self.dial(pack({"token": self.token}))
        if not line.recv(LONGEST):
            raise ConnectionError("a token was not taken")
        line.sendall(b"".join(frames))
        return line

    def states(self, line: socket.socket, patience_s: float) -> Iterator[dict[str, Any]]:
        """Yield states as they come, until the rig hangs up or patience ends; lateness is taken down."""
        unpacker, deadline_s = Unpacker(), time.monotonic() + patience_s
        with contextlib.suppress(ConnectionError, TimeoutError, Garbled):
            while (left_s := deadline_s - time.monotonic()) > 0:
                line.settimeout(left_s)
                data = line.recv(1 << 16)
                if not data:
                    return
                for said in unpacker.feed(data):
                    self.report["late_ms"] = max(self.report["late_ms"], said.get("late_s", 0.0) * 1000)
                    if "reading" in said and not said["reading"]["ee_pos_m"].sum() < 10:
                        self.report["strange"].append("a reading is not finite")
                    yield said

    def try_watchdog(self) -> None:
        """Take the arm, move it, fall silent and see when it is held."""
        with self.known(pack({"do": "take"})) as line:
            states = self.states(line, 3.0)
            first = next(said for said in states if "reading" in said)["reading"]["holds"]
            sent_s = time.monotonic()
            line.sendall(pack(moving(1)))
            if not any(said["reading"]["holds"] > first for said in states if "reading" in said):
                self.report["strange"].append("the watchdog did not hold")
            self.report["watchdog_ms"].append((time.monotonic() - sent_s - WATCHDOG_S) * 1000)

    def strangers(self) -> None:
        """Send mutated frames without the token."""
        lines: deque[socket.socket] = deque()
        for _ in range(self.count):
            message = self.rng.choice(({"token": self.rng.randbytes(16).hex()}, *WISHES))
            lines.append(self.dial(mutated(message, self.rng)))
            if len(lines) > STRANGERS:
                lines.popleft().close()
            self.report["done"] += 1

    def known_ones(self) -> None:
        """Send mutated frames with the token and without the arm."""
        lines: deque[socket.socket] = deque()
        for _ in range(self.count):
            line = self.known()
            with contextlib.suppress(ConnectionError, TimeoutError):
                line.sendall(mutated(self.rng.choice(WISHES), self.rng))
            lines.append(line)
            if len(lines) > KNOWN // 2:
                lines.popleft().close()
            self.report["done"] += 1

    def hand(self) -> None:
        """Send mutated frames with the arm in motion."""
        for i in range(self.count):
            with self.known(pack({"do": "take"}), pack(moving(1))) as line:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    line.sendall(mutated(self.rng.choice(WISHES), self.rng))
                deque(self.states(line, 0.02), maxlen=0)
            self.report["done"] += 1
            if i % 125 == 0:
                self.try_watchdog()

    def flood(self) -> None:
        """Send noise as fast as it goes."""
        noise, until_s = mutated({"token": "x" * 32}, self.rng) * 50, time.monotonic() + FLOOD_S
        while time.monotonic() < until_s:
            self.dial(noise).close()
            self.report["done"] += 1

    def commands(self) -> None:
        """Send true commands as fast as they go."""
        far = pack(moving(1, (2.0, 2.0, 2.0))) + pack(moving(2, (-2.0, 2.0, 0.0)))
        sent, until_s = 0, time.monotonic() + FLOOD_S
        while time.monotonic() < until_s:  # who floods so that nothing can be delivered to it is sent away as deaf
            with self.known(pack({"do": "take"})) as line, contextlib.suppress(ConnectionError):
                rest = b""
                for _ in self.states(line, until_s - time.monotonic()):
                    with contextlib.suppress(BlockingIOError):
                        rest = rest or far * 50
                        sent += (now := line.send(rest, socket.MSG_DONTWAIT))
                        rest = rest[now:]
        self.report["done"] = sent * 2 // len(far)
        self.try_watchdog()

    def deaf(self) -> None:
        """Command the arm and never read."""
        line, until_s = self.known(pack({"do": "take"})), time.monotonic() + FLOOD_S + 5.0
        with line, contextlib.suppress(ConnectionError):
            while time.monotonic() < until_s:
                line.sendall(pack(moving(1)))
                self.report["done"] += 1
                time.sleep(0.01)
            self.report["strange"].append("who never reads was not sent away")
        self.try_watchdog()

    def connections(self) -> None:
        """Connect in all the ways that are of no use."""
        lines: list[tuple[str, socket.socket]] = []
        for i in range(self.count):
            kind = ("idle", "slow", "half-open", "reset")[i % 4]
            line = self.dial(*([pack({"token": "x"})[:7]] if kind in ("slow", "half-open") else []))
            if kind == "half-open":
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_WR)
            if kind == "reset":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.close()
            else:
                lines.append((kind, line))
            if i % 50 == 0:
                self._drip(lines)
            self.report["done"] += 1
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            self._drip(lines)
            time.sleep(0.2)
        open_still = [kind for kind, line in lines if not _is_closed(line)]
        if open_still:
            self.report["strange"].append(f"{len(open_still)} connections were not closed, the last {open_still[-1]}")

    def _drip(self, lines: list[tuple[str, socket.socket]]) -> None:
        for kind, line in lines:
            if kind == "slow":
                with contextlib.suppress(OSError):
                    line.send(b"\1", socket.MSG_DONTWAIT)


def _is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def attack(kind: str) -> None:
    job = json.load(sys.stdin)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, job["count"] + 100) if hard > 0 else 4096, hard))
    signal.alarm(int(LIMIT_S))
    attacker = Attack(job["port"], job["token"], job["count"], random.Random(f"{job['seed']} {kind}"))
    getattr(attacker, kind)()
    print(json.dumps(attacker.report))


if __name__ == "__main__":
    attack(sys.argv[1])
