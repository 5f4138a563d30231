"""User hooks that see training without ever standing in its way: each has a thread, a bounded mailbox and a budget."""

from __future__ import annotations

import importlib
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from roboloop.core.errors import ConfigError, nearest

EVENTS = ("on_training_step", "on_episode", "on_checkpoint")
"""Methods an observer may have; each takes one dict of plain values."""
MAILBOX = 256
Tell = Callable[[str], None]


class Mailbox:
    """One observer and its thread: events that it is too slow for are dropped, oldest first, and counted."""

    def __init__(self, name: str, observer: Any, budget_s: float) -> None:
        self.name = name
        self._observer = observer
        self._budget_s = budget_s
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._warned = False
        self.dropped = self._dropped_said = 0
        self._said: deque[str] = deque(maxlen=16)
        self._thread = threading.Thread(target=self._serve, name=f"observer {name}", daemon=True)
        self._thread.start()

    def post(self, event: str, facts: dict[str, Any]) -> None:
        """Leave an event; never waits for the observer."""
        if not hasattr(self._observer, event):
            return
        with self._wake:
            if len(self._events) >= MAILBOX:
                self._events.popleft()
                self.dropped += 1
            self._events.append((event, facts))
            self._wake.notify()

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not self._events and not self._closing:
                    self._wake.wait()
                if not self._events:
                    return
                event, facts = self._events.popleft()
            self._deliver(event, facts)

    def _deliver(self, event: str, facts: dict[str, Any]) -> None:
        begin_s = time.monotonic()
        try:
            getattr(self._observer, event)(facts)
        except Exception:
            self._said.append(f"observer {self.name}.{event} raised\n{traceback.format_exc().strip()}")
        took_s = time.monotonic() - begin_s
        if took_s > self._budget_s and not self._warned:
            self._warned = True
            self._said.append(f"observer {self.name}.{event} took {took_s:.2f} s, its budget is {self._budget_s:g} s")

    def messages(self) -> list[str]:
        """Return warnings since this was last asked."""
        lines = []
        while self._said:
            lines.append(self._said.popleft())
        if self.dropped > self._dropped_said:
            self._dropped_said = self.dropped
            lines.append(f"observer {self.name} is too slow: {self.dropped} events dropped so far")
        return lines

    def close(self, patience_s: float) -> None:
        """Let the observer finish what is in the mailbox, but not for ever."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(patience_s)


class Observers:
    """All observers of a run."""

    def __init__(self, names: Sequence[str], budget_s: float) -> None:
        found = [(name, load(name)) for name in names]  # all, before any has a thread
        self._boxes = [Mailbox(name, observer, budget_s) for name, observer in found]

    def post(self, event: str, facts: dict[str, Any]) -> None:
        """Leave an event in every mailbox."""
        for box in self._boxes:
            box.post(event, facts)

    def messages(self) -> list[str]:
        """Return all warnings since this was last asked."""
        return [line for box in self._boxes for line in box.messages()]

    def close(self) -> None:
        """Give each observer a few seconds to finish."""
        for box in self._boxes:
            box.close(patience_s=5.0)


def load(name: str) -> Any:
    """Make the observer ``module:Class``; what cannot be used is said before training starts, and is not called."""
    module, _, kind = name.partition(":")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"an observer is named module:Class, not {name!r}")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"observer {name!r} cannot be imported: {error}") from None
    if not hasattr(found, kind):
        raise ConfigError(f"observer {name!r}: {module} has no {kind!r}{nearest(kind, dir(found))}")
    made = getattr(found, kind)
    if not isinstance(made, type) or not any(hasattr(made, event) for event in EVENTS):
        raise ConfigError(f"observer {name!r} has none of the methods {', '.join(EVENTS)}")
    return made()


_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
