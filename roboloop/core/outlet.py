"""Standard output that may go away: a reader of a pipe that has enough, a terminal that was closed."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
from typing import Any, TextIO


class _Outlet(io.FileIO):
    """A descriptor that takes everything: once nobody reads it any more, what is written is dropped."""

    def write(self, data: Any, /) -> int:
        """Write, or drop."""
        try:
            return super().write(data)
        except OSError as error:  # also a log file on a full disk: there may be room again
            if error.errno in (errno.EPIPE, errno.EIO):  # of a pipe, of a terminal
                _to_nowhere(self.fileno())
            return len(memoryview(data).cast("B"))


def go_on_unheard() -> None:
    """Let this process work on when its terminal or the reader of its output goes; its children too."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _deaf(sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _deaf(sys.stderr)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _deaf(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed before we began
        return open(os.devnull, "w")
    stream.flush()
    buffer = io.BufferedWriter(_Outlet(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=bool(stream.line_buffering))


def ended_quietly(stream: TextIO) -> bool:
    """Say whether nobody reads a stream any more, and send to nowhere what is still in it."""
    try:
        looked = select.poll()
        looked.register(stream.fileno(), 0)
        is_gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in looked.poll(0))
        if is_gone:
            _to_nowhere(stream.fileno())  # or Python would complain when it flushes at its end
    except (OSError, ValueError):  # no descriptor: as in tests
        return False
    return is_gone


def _to_nowhere(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
