"""How long an environment may keep waiting who looks at it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from roboloop.core.raised import place_in

NOTE_S = 10.0
"""After so many seconds, and again after as many, a line says where the environment is."""
LIMIT_S = 120.0
"""Longest time of a check."""


class TooLong(BaseException):
    """A check reached its limit; no ``except Exception`` of other people's code may keep it."""


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say where code is that takes long, and raise TooLong at the limit, in the midst of it.

    Signals reach the main thread only: in another one nothing is said, and nothing ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic()

    def look(number: int, frame: FrameType | None) -> None:
        waited_s = time.monotonic() - began
        if waited_s >= LIMIT_S:
            raise TooLong(f"not done after {waited_s:.0f} s, now{place_in(frame)}: reset() and step() take too long")
        print(f"roboloop: {what}: {waited_s:.0f} s, now{place_in(frame)}", file=sys.stderr, flush=True)

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, NOTE_S, NOTE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
