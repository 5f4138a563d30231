"""A clean stop: Ctrl-C and SIGTERM are taken down, and whoever loops looks between two iterations."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """True once a signal has asked for the end, as long as it is entered; the main thread only."""

    def __init__(self) -> None:
        self.number = 0
        """Of the signal."""
        self._handlers: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.number != 0

    def __enter__(self) -> StopRequest:
        self._handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
