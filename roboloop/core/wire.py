"""Messages between our processes: nested plain values and arrays as bytes, over a pipe that knows who has died."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from roboloop.core.state import join, split

_PREFIX = 8


def encode(message: Any) -> bytes:
    """Return a message as a JSON header followed by the bytes of its arrays; nothing in it can be executed."""
    arrays, tree = split(message)
    about = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps({"tree": tree, "arrays": about}).encode()
    return b"".join([len(header).to_bytes(_PREFIX, "little"), header, *(a.tobytes() for a in arrays.values())])


def decode(data: bytes) -> Any:
    """Return the message; its arrays are writable copies."""
    begin = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    header = json.loads(data[_PREFIX:begin])
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        array = np.empty(shape, dtype)
        end = begin + array.nbytes
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8, array.nbytes, begin)
        arrays[name], begin = array, end
    return join(arrays, header["tree"])


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
