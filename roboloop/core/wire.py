"""Messages between our processes: nested plain values and arrays as bytes, over a pipe that knows who has died."""

from __future__ import annotations

import json
import math
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from roboloop.core.state import join, split
from roboloop.core.types import Array

_PREFIX = 8
_DIMS = 32
_PLAIN = {kind.str: kind for c in "?bhilqBHILQefdFD" for kind in (np.dtype(c), np.dtype(c).newbyteorder())}
"""What arrays may hold, by the name that it has on the wire: plain numbers; nothing that refers to objects."""


def encode(message: Any) -> bytes:
    """Return a message as a JSON header followed by the bytes of its arrays; nothing in it can be executed."""
    arrays, tree = split(message)
    about = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps({"tree": tree, "arrays": about}).encode()
    return b"".join([len(header).to_bytes(_PREFIX, "little"), header, *(a.tobytes() for a in arrays.values())])


def decode(data: bytes, most_brackets: int | None = None) -> Any:
    """Return the message, its arrays as writable copies; ValueError for anything that ``encode`` has not made.

    Memory is taken only for bytes that are there. From strangers, the opening brackets of the header bound its nesting.
    """
    begin = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if len(data) < begin:
        raise ValueError(f"a header of {begin - _PREFIX} bytes was announced, {max(0, len(data) - _PREFIX)} came")
    header = data[_PREFIX:begin]
    if most_brackets is not None and header.count(b"[") + header.count(b"{") > most_brackets:
        raise ValueError(f"the header has more than {most_brackets} brackets")
    try:
        about = json.loads(header)
        return join(_arrays(about["arrays"], data, begin), about["tree"])
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not a message: {type(error).__name__}") from None
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None


def _arrays(about: Any, data: bytes, begin: int) -> dict[str, Array]:
    """Return the arrays behind a header; what it says of them must fit what came, before any is made."""
    plans: list[tuple[str, np.dtype[Any], list[int], int]] = []
    for name, kind, shape in about:
        dtype = _PLAIN[kind]
        if not isinstance(shape, list) or len(shape) > _DIMS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array's shape is a short list of whole numbers")
        plans.append((name, dtype, shape, math.prod(shape) * dtype.itemsize))
    announced, came = sum(size for *_, size in plans), len(data) - begin
    if announced != came:
        raise ValueError(f"the arrays need {announced:.6g} bytes, {came} came")
    arrays = {}
    for name, dtype, shape, size in plans:
        arrays[name] = np.empty(shape, dtype)
        arrays[name].reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8, size, begin)
        begin += size
    return arrays


class Channel:
    """One end of a pipe; EOFError or OSError when the other end is gone."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def send(self, message: Any) -> None:
        """Send one message; waits while the pipe is full."""
        self.connection.send_bytes(encode(message))

    def receive(self) -> Any:
        """Wait for the next message."""
        return decode(self.connection.recv_bytes())

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
