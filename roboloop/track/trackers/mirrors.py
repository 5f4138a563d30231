"""Trackers beside training: each follows ``metrics.jsonl`` in a thread of its own, and none can hold up or end a run.

A mirror reads the log itself, up to where the run says that it is whole. So a slow tracker costs no memory and misses
no row, and a resumed run is mirrored from its first row as a new one is.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from roboloop.core.errors import DiskError, Unreadable, UserError
from roboloop.core.files import DISK_FAULTS, RESUME, open_regular
from roboloop.core.raised import where
from roboloop.core.sealed import Chain
from roboloop.track.trackers.tracker import TrackedRun, Tracker

OPEN_S, BEHIND_S, CLOSE_S = 10.0, 10.0, 60.0
"""How long training waits for ``open``, how long a tracker may be behind without a word, and the last wait for it."""
Tell = Callable[[str], None]


class Mirror:
    """One tracker and its thread."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, log: Path) -> None:
        self._name, self._tracker, self._run, self._log = name, tracker, run, log
        self._wake = threading.Condition()
        self._end = self._done = 0
        """Bytes of the log that are whole, and that are mirrored."""
        self._behind_since_s = math.inf
        self._call = "open"
        self._opened, self._ended = threading.Event(), threading.Event()
        self._is_late = self._is_closing = self._has_warned = False
        self._refusal: UserError | None = None
        self._said: deque[str] = deque()
        self._thread = threading.Thread(target=self._serve, name=f"tracker {name}", daemon=True)

    def begin(self, end: int) -> None:
        """Open the tracker, and mirror the log so far."""
        self.advance(end)
        self._thread.start()

    def await_open(self, patience_s: float) -> None:
        """Wait until the tracker is open, but not for ever; raise what the user must change before training."""
        if not self._opened.wait(patience_s):
            with self._wake:
                self._is_late = self._has_warned = True
            self._said.append(f"tracker {self._name} is not open after {OPEN_S:g} s; training does not wait")
        if self._refusal is not None:
            raise self._refusal

    def advance(self, end: int) -> None:
        """Say that the log is whole up to here; never waits for the tracker."""
        with self._wake:
            if self._done == self._end:
                self._behind_since_s = time.monotonic()
            self._end = end
            self._wake.notify()

    def messages(self) -> list[str]:
        """Return what the user should know since this was last asked."""
        is_behind = self._done < self._end and not self._ended.is_set()
        if is_behind and not self._has_warned and time.monotonic() - self._behind_since_s > BEHIND_S:
            self._has_warned = True
            self._said.append(f"tracker {self._name} is behind: {self._share()}; training does not wait")
        return [self._said.popleft() for _ in range(len(self._said))]

    def ask_to_close(self) -> None:
        """Let it end once all is mirrored."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()

    def close(self, deadline_s: float, tell: Tell) -> None:
        """Wait for the end until a deadline."""
        if self._thread.ident is None:  # the run ended before it began
            return
        if not self._ended.wait(min(BEHIND_S, max(0.0, deadline_s - time.monotonic()))):
            tell(f"waiting for tracker {self._name}: {self._share()}")
            if not self._ended.wait(max(0.0, deadline_s - time.monotonic())):
                tell(f"tracker {self._name} hangs in {self._call} and is left behind: {self._share()}")

    def _share(self) -> str:
        return f"{self._done / max(self._end, 1):.0%} of the metrics are mirrored"

    def _serve(self) -> None:
        with self._dropped_by_errors():
            self._tracker.open(self._run)
            self._call = "write"
            self._opened.set()
            with self._dropped_by_errors(), open_regular(self._log) as file:
                self._follow(file)
            self._call = "close"
            self._tracker.close()
        self._opened.set()
        self._ended.set()

    @contextlib.contextmanager
    def _dropped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except (DiskError, Unreadable) as error:  # a run can go on without its mirrors
            self._drop(str(error).removesuffix(f": {RESUME}"))
        except UserError as error:
            self._refuse_or_drop(error)
        except (Exception, SystemExit) as error:
            self._drop(_why(error))

    def _follow(self, file: BinaryIO) -> None:
        chain = Chain()
        while self._more():
            line = file.readline()
            row = json.loads(chain.opened(line.removesuffix(b"\n")))
            if numbers := numbers_of(row):
                self._tracker.write(int(row["step"]), numbers)
            self._done += len(line)

    def _more(self) -> bool:
        """Wait for a row; say whether there is one."""
        with self._wake:
            while self._done >= self._end and not self._is_closing:
                self._wake.wait()
            return self._done < self._end

    def _refuse_or_drop(self, error: UserError) -> None:
        with self._wake:
            if not self._opened.is_set() and not self._is_late:
                self._refusal = error
                return
        self._drop(str(error))

    def _drop(self, why: str) -> None:
        end = "" if self._call == "close" else "; training goes on"
        self._said.append(f"tracker {self._name} failed in {self._call} and is dropped: {why}{end}")


class Mirrors:
    """All trackers of a run."""

    def __init__(self, trackers: Mapping[str, Tracker], run: TrackedRun, log: Path) -> None:
        self._all = [Mirror(name, tracker, run, log) for name, tracker in trackers.items()]

    def begin(self, end: int) -> None:
        """Open all trackers; ``end`` is where the log is whole."""
        for mirror in self._all:
            mirror.begin(end)
        deadline_s = time.monotonic() + OPEN_S
        for mirror in self._all:
            mirror.await_open(max(0.0, deadline_s - time.monotonic()))

    def advance(self, end: int) -> None:
        """Say that the log is whole up to here."""
        for mirror in self._all:
            mirror.advance(end)

    def messages(self) -> list[str]:
        """Return what the user should know since this was last asked."""
        return [line for mirror in self._all for line in mirror.messages()]

    def close(self, tell: Tell) -> None:
        """Give all trackers together a minute to mirror the last rows."""
        deadline_s = time.monotonic() + CLOSE_S
        for mirror in self._all:
            mirror.ask_to_close()
        for mirror in self._all:
            mirror.close(deadline_s, tell)
        for line in self.messages():
            tell(line)


def numbers_of(row: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a row of the log, without its step."""
    return {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}


def _why(error: BaseException) -> str:
    fault = DISK_FAULTS.get(error.errno or 0) if isinstance(error, OSError) else None
    return fault or where(error)
