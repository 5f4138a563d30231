"""Messages over a socket: a length, then ``core.wire``'s JSON and bytes; nothing in them can be executed."""

from __future__ import annotations

import math
import socket
from typing import Any

import numpy as np

from roboloop.core.types import Array
from roboloop.core.wire import decode, encode
from roboloop.envs.panda.robot import Command, Reading

HOST = "127.0.0.1"
"""Drivers listen to this machine only."""
_PREFIX = 4
LONGEST = 1 << 12
"""A message is a few hundred bytes; whoever announces more does not speak our language."""
MOST_BRACKETS = 64
"""Of a message's header: a state has 20."""
MOST_NUMBER = 1 << 63
"""Seeds and numbers of wishes are below it."""
POSES = {"ee_pos_m": (3, 10.0), "ee_quat": (4, 1.1), "joint_pos_rad": (7, 10.0)}
"""How many numbers each pose of a command has, and how large they may be: more than any arm can do."""
UNIT_SLACK = 0.1
READS = {"ee_pos_m": 3, "ee_quat": 4, "joint_pos_rad": 7, "joint_vel_rad_s": 7, "object_pose": 4}
TIMES = ("arm_time_s", "camera_time_s", "gripper_width_m")
STOPS = ("", "controller", "limit")
_SHOWN = 60


class Garbled(ValueError):
    """What came over the line is no message of ours."""


def shown(text: Any, most: int = _SHOWN) -> str:
    """Return a stranger's words as a few plain characters on one line."""
    words = "".join(c if c.isprintable() else "?" for c in str(text)[: most + 1])
    return words if len(words) <= most else f"{words[:most]}..."


def pack(message: Any) -> bytes:
    """Return a message with its length in front."""
    data = encode(message)
    return len(data).to_bytes(_PREFIX, "little") + data


class Unpacker:
    """Cuts a stream into messages, however it arrives."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Take what has arrived, and return the messages that are whole."""
        return [opened(message) for message in self._cut(data)]

    def feed_for_newest(self, data: bytes | bytearray) -> Any:
        """Take what has arrived, and return the last message that is whole, or None; the others are not even read."""
        messages = self._cut(data)
        return opened(messages[-1]) if messages else None

    def _cut(self, data: bytes | bytearray) -> list[bytes]:
        self._bytes += data
        messages, begin = [], 0
        while len(self._bytes) >= begin + _PREFIX:
            size = _size(self._bytes[begin : begin + _PREFIX], LONGEST)
            if len(self._bytes) < begin + _PREFIX + size:
                break
            messages.append(bytes(self._bytes[begin + _PREFIX : begin + _PREFIX + size]))
            begin += _PREFIX + size
        del self._bytes[:begin]
        return messages


class Inbox:
    """Takes messages from a socket one by one: what follows stays in the kernel, so that a flood makes itself wait."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._begin()

    def _begin(self) -> None:
        self._bytes, self._missing, self._is_body = bytearray(), _PREFIX, False

    def take(self, line: socket.socket) -> Any:
        """Return a message if a whole one has come, or None; EOFError at the end, OSError if the line breaks."""
        while True:
            try:
                data = line.recv(self._missing)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self._bytes += data
            self._missing -= len(data)
            if self._missing:
                return None
            if self._is_body:
                message = bytes(self._bytes)
                self._begin()
                return opened(message)
            self._missing, self._is_body = _size(self._bytes, self.longest), True
            self._bytes.clear()


def _size(prefix: bytes | bytearray, longest: int) -> int:
    size = int.from_bytes(prefix, "little")
    if not 0 < size <= longest:
        raise Garbled(f"a message of {size} bytes was announced, {longest} are allowed")
    return size


def opened(message: bytes) -> Any:
    """Return what a message says."""
    try:
        return decode(message, MOST_BRACKETS)
    except ValueError as error:
        raise Garbled(shown(error)) from None


def whole_number(data: dict[str, Any], name: str) -> int:
    """Return a count or seed of a message."""
    number = data.get(name)
    if type(number) is not int or not 0 <= number < MOST_NUMBER:
        raise Garbled(f"{name} must be a whole number of at most 63 bits")
    return number


def command_to_data(command: Command) -> dict[str, Any]:
    """Return a command as plain data; lists, since arrays take longer to pack, and somebody waits for it."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(command).items()}


def command_from_data(data: Any) -> Command:
    """Return the command, or refuse what no arm should be told."""
    if not isinstance(data, dict) or data.keys() != {*POSES, "gripper_open"}:
        raise Garbled(f"a command has {', '.join(POSES)} and gripper_open")
    poses = {name: _pose(name, data[name]) for name in POSES}
    quat, grip = poses["ee_quat"], data["gripper_open"]
    if quat is not None and abs(math.hypot(*quat) - 1.0) > UNIT_SLACK:
        raise Garbled("ee_quat must have length 1")
    if grip is not None and not isinstance(grip, bool):
        raise Garbled("gripper_open must be yes, no or nothing")
    return Command(**poses, gripper_open=grip)


def _pose(name: str, numbers: Any) -> Array | None:
    if numbers is None:
        return None
    size, most = POSES[name]
    # NaN is in no range, and whole numbers of any length can be compared
    if not (isinstance(numbers, list) and len(numbers) == size and all(_is_within(n, most) for n in numbers)):
        raise Garbled(f"{name} must be {size} finite numbers, none beyond {most:g}")
    return np.array(numbers, np.float64)


def _is_within(number: Any, most: float) -> bool:
    return type(number) in (int, float) and -most <= number <= most


def reading_to_data(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain data and arrays."""
    return dict(vars(reading))


def reading_from_data(data: Any) -> Reading:
    """Return the reading; numbers in it may be none (that is a fault of its own), all else must be as agreed."""
    if not isinstance(data, dict) or data.keys() != {*READS, *TIMES, "stopped", "cause", "holds"}:
        raise Garbled("a reading has other parts")
    for name, size in READS.items():
        array = data[name]
        if not (isinstance(array, np.ndarray) and array.dtype == np.float64 and array.shape == (size,)):
            raise Garbled(f"{name} of a reading must be {size} numbers")
    if not all(isinstance(data[name], float) for name in TIMES):
        raise Garbled("a time of a reading is no number")
    if not all(isinstance(data[name], str) for name in ("stopped", "cause")) or data["stopped"] not in STOPS:
        raise Garbled("a reading must say why the controller stopped")
    return Reading(**{**data, "holds": whole_number(data, "holds"), "cause": shown(data["cause"], 200)})
