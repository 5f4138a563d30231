"""Which runs there are, by short ids, and which of their files may be shown."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from roboloop.core.errors import DataError
from roboloop.core.files import is_inside
from roboloop.launch.watch import Row
from roboloop.launch.watch import look as looked_at

_FRESH_S = 1.0
_PATIENCE_S = 2.0
"""A request waits so long for a look at all runs, then it is answered with the last one."""
_REST = 4.0
"""Looks that take long are this many times as far apart as they take."""
_MOST_RUNS = 10_000
"""Of one root; a page of more would be of no use."""
_MOST_BYTES = 4 << 30
"""Of a film."""
MEDIA = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png", ".jpg": "image/jpeg"}
"""What a page may embed; nothing that a browser would run."""


class RunCatalog:
    """The runs under some roots, looked at again when the last look is old."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self._rows: dict[str, Row] = {}
        self._due_s = -math.inf
        self._lock = threading.Lock()
        self._look: Future[dict[str, Row]] | None = None

    def rows(self) -> dict[str, Row]:
        """Return all runs by their ids: as they are now, or where looking takes long as they were."""
        with self._lock:
            if self._look is None and time.monotonic() >= self._due_s:
                self._look = Future()
                threading.Thread(target=self._look_again, args=(self._look,), name="dash-look", daemon=True).start()
            look = self._look
        if look is not None:
            with contextlib.suppress(TimeoutError):
                look.result(_PATIENCE_S)
        return self._rows

    def is_looking(self) -> bool:
        """Say whether a look takes so long that nobody waits for it."""
        return self._look is not None

    def forget(self) -> None:
        """Look again at the next question."""
        with self._lock:
            self._due_s = -math.inf
            self._look = None  # one that is under way may have seen what was before

    def _look_again(self, look: Future[dict[str, Row]]) -> None:
        start_s, found, error = time.monotonic(), dict[str, Row](), None
        try:
            for root in self.roots:
                found |= {id_of(row.path): row for row in looked_at(root, _MOST_RUNS) if contained(row.path, root)}
        except BaseException as caught:  # whoever waits is told
            error = caught
        with self._lock:
            if self._look is look:
                now_s = time.monotonic()
                # looking at very many runs must not take all the time that there is
                self._look, self._due_s = None, now_s + max(_FRESH_S, _REST * (now_s - start_s))
                self._rows = self._rows if error else found
        if error:
            look.set_exception(error)
        else:
            look.set_result(found)

    def run(self, run_id: str) -> Path:
        """Return the directory of a run; an id that is not ours is a DataError."""
        row = self._rows.get(run_id) or self.rows().get(run_id)
        if row is None:
            raise DataError("no such run")
        return row.path

    def name(self, path: Path) -> str:
        """Return how a run is called on the page: its path below its root, with the root where there are several."""
        for root in self.roots:
            if path.is_relative_to(root):
                inner = str(path.relative_to(root))
                return path.name if inner == "." else inner if len(self.roots) == 1 else f"{root.name}/{inner}"
        return path.name

    def media(self, run_id: str, inner: str) -> Path:
        """Return a film or picture of a run; anything else, or anything outside of the run, is a DataError."""
        run = self.run(run_id)
        if "\0" in inner or not is_media(run / inner, run):
            raise DataError("no such file")
        return (run / inner).resolve()


def contained(path: Path, root: Path) -> bool:
    """Say whether a path is below a root (or the root) after all symbolic links have been followed."""
    if is_inside(path, root):
        return True
    # a run of a sweep that waits has no directory yet: its name alone must be below
    return not os.path.lexists(path) and ".." not in path.parts and path.is_relative_to(root)


def is_media(path: Path, run: Path) -> bool:
    """Say whether a path is a film or picture of a run: by its name, and by that of the file it may link to."""
    try:
        if path.suffix.lower() not in MEDIA or not contained(path, run) or not path.is_file():
            return False
        return path.resolve().suffix.lower() in MEDIA and path.stat().st_size <= _MOST_BYTES
    except (OSError, RuntimeError):  # it has just gone, or is a loop of links
        return False


def id_of(path: Path) -> str:
    """Return a short name of a run's path that needs no quoting."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:10]


def listed(catalog: RunCatalog) -> list[dict[str, Any]]:
    """Return all runs as the page lists them."""
    rows = []
    for run_id, row in catalog.rows().items():
        info = row.info
        rows.append({
            "id": run_id,
            "name": catalog.name(row.path),
            "group": f"{info.experiment}/{info.task}" if info else str(Path(catalog.name(row.path)).parent),
            "task": info.task if info else "",
            "seed": info.seed if info else None,
            "state": row.state,
            "step": info.step if info else 0,
            "steps": row.steps,
            "success": info.last_success if info else None,
            "return": info.last_return if info else None,
            "steps_per_s": info.steps_per_s if info else None,
            "eta_s": info.eta_s if info and row.state == "running" else None,
            "slot": row.slot,
            "memory_bytes": row.memory_bytes,
            "updated": info.updated if info and math.isfinite(info.updated) else None,
            "error": info.error if info else "",
        })  # fmt: skip
    return rows
