"""Messages over a socket: a length, then ``core.wire``'s JSON and bytes; nothing in them can be executed."""

from __future__ import annotations

from typing import Any

import numpy as np

from roboloop.core.wire import decode, encode
from roboloop.envs.robot import Command, Reading

HOST = "127.0.0.1"
"""Drivers listen to this machine only."""
_PREFIX = 4
LONGEST = 1 << 16
"""A message is a few hundred bytes; whoever announces more does not speak our language."""


class Garbled(ValueError):
    """What came over the line is no message of ours."""


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
        return [_opened(message) for message in self._cut(data)]

    def feed_for_newest(self, data: bytes | bytearray) -> Any:
        """Take what has arrived, and return the last message that is whole, or None; the others are not even read."""
        messages = self._cut(data)
        return _opened(messages[-1]) if messages else None

    def _cut(self, data: bytes | bytearray) -> list[bytes]:
        self._bytes += data
        messages, begin = [], 0
        while len(self._bytes) >= begin + _PREFIX:
            size = int.from_bytes(self._bytes[begin : begin + _PREFIX], "little")
            if size > LONGEST:
                raise Garbled(f"a message of {size} bytes was announced")
            if len(self._bytes) < begin + _PREFIX + size:
                break
            messages.append(bytes(self._bytes[begin + _PREFIX : begin + _PREFIX + size]))
            begin += _PREFIX + size
        del self._bytes[:begin]
        return messages


def _opened(message: bytes) -> Any:
    try:
        return decode(message)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, MemoryError) as error:
        raise Garbled(str(error)) from None


def command_to_data(command: Command) -> dict[str, Any]:
    """Return a command as plain data; lists, since arrays take longer to pack, and somebody waits for it."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(command).items()}


def command_from_data(data: dict[str, Any]) -> Command:
    """Return the command, or refuse what no arm should be told."""
    sizes = {"ee_pos_m": 3, "ee_quat": 4, "joint_pos_rad": 7}
    try:
        poses = {name: None if data[name] is None else np.array(data[name], np.float64) for name in sizes}
        for name, pose in poses.items():
            if pose is not None and (pose.shape != (sizes[name],) or not np.isfinite(pose).all()):
                raise Garbled(f"{name} must be {sizes[name]} finite numbers")
        if data["gripper_open"] not in (None, True, False):
            raise Garbled("gripper_open must be yes, no or nothing")
        return Command(**{**data, **poses})
    except Garbled:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Garbled(f"no command: {error}") from None


def reading_to_data(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain data and arrays."""
    return dict(vars(reading))


def reading_from_data(data: dict[str, Any]) -> Reading:
    """Return the reading."""
    return Reading(**data)
