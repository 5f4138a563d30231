"""A clean stop: Ctrl-C, SIGTERM or an event ask for it, and whoever loops looks between two iterations."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """True once a signal or the event has asked for the end.

    Signals are taken while it is entered in the main thread; Python delivers them to no other, where the event is left.
    """

    def __init__(self, event: threading.Event | None = None) -> None:
        self.number = 0
        """Of the signal."""
        self._event = event
        self._handlers: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.number != 0 or (self._event is not None and self._event.is_set())

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            # none: one that Python did not set, and cannot set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers = {}
