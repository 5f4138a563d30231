"""What a tracker is, and what it is told of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """The run whose metrics are mirrored."""

    path: Path
    """Its directory."""
    experiment: str
    task: str
    seed: int
    config: Mapping[str, Any]
    """All config keys as plain data, section by section."""

    @property
    def name(self) -> str:
        """The run as lists show it."""
        return f"{self.experiment}/{self.task}/{self.seed}"


class Tracker(Protocol):
    """A mirror of ``metrics.jsonl`` in another viewer; a class whose instances are made without arguments.

    An instance lives for one start of a run. All calls come from one thread of its own, so that no call delays
    training, and a connection that must stay in one thread can be used.
    """

    def open(self, run: TrackedRun) -> None:
        """Begin to mirror a run, from its first row: whatever was mirrored of it before is replaced.

        A resumed run is opened as a new one is, and all rows of its log are written again. Raise a ``UserError``
        for what the user must change before training; anything else that is raised only drops the tracker.
        """
        ...

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Mirror one row: its finite numbers by name. A step may come twice, and an evaluation after later steps."""
        ...

    def close(self) -> None:
        """Flush and release everything; called after an exception in ``write`` too, but not after one in ``open``."""
        ...
