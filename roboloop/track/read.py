"""Readers of run directories: what `runs`, `plot`, `report` and the dashboard know of a run."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roboloop.core.errors import DataError, Unreadable
from roboloop.core.files import DISK_FAULTS, open_regular, parse_json, read_bytes, read_json
from roboloop.core.processes import boot_id as boot_id
from roboloop.core.processes import has_open, started_ticks
from roboloop.core.processes import process_alive as process_alive
from roboloop.core.sealed import Chain

STATES = ("running", "done", "failed", "stopped")
AFTERWARDS = "eval.jsonl"
"""Rows of ``roboloop eval RUN --checkpoint all``, as training's own in metrics.jsonl, which only training writes."""
WEIGHTS = "weights"
"""In the first row of an evaluation: the digest of what was evaluated, as the manifest of its checkpoint has it."""
_MARKERS = ("status.json", "config.yaml", "meta.json", "metrics.jsonl")
_DEPTH = 8  # runs/<experiment>/<task>/<seed>, where an experiment may be several folders: sweeps, stages of simgan
SWEEP = ".sweep"
"""Folder that makes a directory a sweep: its variants are experiments named after it."""
LAUNCH = "launch"
"""Folder of a launcher in a run directory."""
_ASIDE = re.compile(r"\d+\.old-\d+")
"""Folder of a run that ``--overwrite`` moved aside: it is found by its path alone, and counts among no seeds."""
_STALE_S = 600.0  # a process of another host cannot be asked; this long without a sign and it counts as lost
_CLOCK_SLACK_S = 60.0
_LONGEST_LINE = 16 << 20
_MOST_BYTES = 1 << 20
"""Of a status or a config: all runs of a folder are looked at again and again."""
_BRACKETS = 100
_MOST_ENTRIES = 1_000_000
_LINK_DEPTH, _MOST_LINKED = 4, 50_000
"""What is looked at below a link: it may lead out of the folder of runs, to a whole disk."""


@dataclass(frozen=True)
class RunInfo:
    """One run directory, as its status says; the names come from its path."""

    path: Path
    experiment: str
    task: str
    seed: int | None
    """None where the folder is not named by a number."""
    state: str
    """running, done, failed, stopped; lost: says running, but its process is gone; damaged: see ``error``."""
    step: int = 0
    steps: int = 0
    last_success: float | None = None
    last_return: float | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    updated: float = math.nan
    """Unix seconds of the last sign of life."""
    error: str = ""


class Series(NamedTuple):
    """The values of one metric and the steps at which it was logged."""

    step: NDArray[np.float64]
    value: NDArray[np.float64]


_NOTHING = Series(np.empty(0), np.empty(0))


def find_runs(root: Path, most: int | None = None) -> list[RunInfo]:
    """Return every run under a root, an experiment, a task, or the run itself, sorted by name and seed.

    Where there are more than ``most`` runs, or too many files, the last row is of a folder and says so.
    """
    infos: list[RunInfo] = []
    walk = _Walk()
    for path in walk.runs(root):
        if len(infos) == most:
            walk.unseen.insert(0, root)
            break
        try:
            infos.append(read_run(path))
        except DataError as error:
            infos.append(RunInfo(path, *names_of(path), state="damaged", error=str(error)))
    why = "too many files to look for runs" if len(infos) != most else f"only {most} of its runs are shown"
    infos += [RunInfo(path, *names_of(path), "damaged", error=f"{path}: {why}") for path in walk.unseen[:1]]
    return sorted(infos, key=lambda i: (i.experiment, i.task, -1 if i.seed is None else i.seed, str(i.path)))


def read_run(path: Path) -> RunInfo:
    """Return what one run directory says of itself; a foreign or damaged one is a DataError."""
    status = read_status(path)
    state = str(status["state"])
    if state == "running" and _process_lost(path, status):
        state = "lost"
    return RunInfo(
        path,
        *names_of(path),
        state=state,
        step=int(status["step"]),
        steps=int(status["steps"]),
        last_success=_optional(status.get("last_success")),
        last_return=_optional(status.get("last_return")),
        steps_per_s=_optional(status.get("steps_per_s")),
        eta_s=_optional(status.get("eta_s")),
        updated=float(_optional(status.get("updated_unix_s")) or math.nan),
    )


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log, without their checksums or a torn last line; a missing file has none."""
    rows: list[dict[str, Any]] = []
    torn, chain = 0, Chain()
    for number, line in enumerate(lines_of(path), start=1):
        if torn:
            raise DataError(f"{path}: line {torn} is not JSON")
        if b"\0" in line:  # a power cut can also leave a finished last line of zeros
            torn = number
            continue
        try:
            row = _row(chain.opened(line))
        except (ValueError, RecursionError, DataError) as error:
            what = error if "checksum" in str(error) else "is not JSON"
            raise DataError(f"{path}: line {number} {what}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is not a dict")
        rows.append(row)
    return rows


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the finished lines of a log, each of a bounded length; a missing file has none."""
    try:
        with open_regular(path) as file:
            # what follows the last newline is nothing, or a line that was never finished
            while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
                yield line[:-1]
            if len(line) >= _LONGEST_LINE:
                raise DataError(f"{path}: a line has more than {_LONGEST_LINE >> 20} MB: not a log")
    except FileNotFoundError:
        return
    except OSError as error:
        kind = Unreadable if error.errno in DISK_FAULTS else DataError
        raise kind(f"{path}: cannot be read ({error.strerror})") from error


def _row(line: bytes) -> Any:
    # counting is much quicker than to look how deep they are, and hardly any line has so many
    many = line.count(b"[") + line.count(b"{") > _BRACKETS
    return parse_json(line, "line") if many else json.loads(line)


def read_metrics(run: Path, keys: Sequence[str]) -> dict[str, Series]:
    """Return the chosen metrics of a run; a metric that was never logged is empty.

    What a run did not evaluate while it trained is taken from the evaluation of all its checkpoints afterwards.
    """
    found = read_matching(run, set(keys).__contains__)
    return {key: found.get(key, _NOTHING) for key in keys}


def read_matching(run: Path, wanted: Callable[[str], bool]) -> dict[str, Series]:
    """Return the metrics of a run whose names are wanted, with what was evaluated afterwards as ``read_metrics``."""
    _require_run(run)
    return _columns(run / AFTERWARDS, wanted) | _columns(run / "metrics.jsonl", wanted)


def read_timing(run: Path, keys: Sequence[str] = ("wall_s",)) -> dict[str, Series]:
    """Return the chosen clock readings of a run; ``wall_s`` counts training seconds over all resumes."""
    _require_run(run)
    found = _columns(run / "timing.jsonl", set(keys).__contains__)
    return {key: found.get(key, _NOTHING) for key in keys}


def _process_lost(path: Path, status: dict[str, Any]) -> bool:
    updated = _optional(status.get("updated_unix_s")) or 0.0
    if status.get("host") != socket.gethostname():
        return time.time() - updated > _STALE_S
    if status.get("boot_id") != boot_id():
        return True
    pid = int(_optional(status.get("pid")) or 0)
    if not process_alive(pid):
        return True
    held = has_open(pid, path / "lock")
    if held is not None:  # whoever works on a run holds its lock: clocks jump, and a copy names the original's process
        return not held
    said, really = status.get("started_ticks"), started_ticks(pid)
    if said is None or really is None:
        return _started_unix_s(really) > updated + _CLOCK_SLACK_S
    return bool(said != really)  # another process has only inherited the number


def _started_unix_s(ticks: int | None) -> float:
    """Return when a process was started, or minus infinity where the system does not say."""
    if ticks is None:
        return -math.inf
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime_s + ticks / os.sysconf("SC_CLK_TCK")


def read_status(path: Path) -> dict[str, Any]:
    """Return the status of a run, as it was written; what is none is a DataError."""
    file = path / "status.json"
    if not os.path.lexists(file):
        raise DataError(f"{path}: not a run directory (no status.json)")
    status = read_json(file, _MOST_BYTES)
    if not isinstance(status, dict) or status.get("state") not in STATES:
        raise DataError(f"{path}: status.json is not a run's status")
    if not all(type(status.get(key)) is int and _optional(status[key]) is not None for key in ("step", "steps")):
        raise DataError(f"{path}: status.json does not say the step")
    return status


def aside(path: Path) -> Path:
    """Return a free name for a run that is moved aside; see ``_ASIDE``."""
    number = 1
    while (old := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return old


def _is_run(path: Path) -> bool:
    """Say whether anything stands where a run has a file: a FIFO or a link there makes it a damaged one."""
    return any(_stands(path / marker) for marker in _MARKERS)


def _stands(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _require_run(path: Path) -> None:
    if not _is_run(path):
        raise DataError(f"{path}: not a run directory")


class _Walk:
    """A walk for runs, of a bounded length: a link may lead to all that there is."""

    def __init__(self) -> None:
        self._left = _MOST_ENTRIES
        self.unseen: list[Path] = []
        """Where there was more than is looked at."""

    def runs(self, path: Path, depth: int = _DEPTH, left: list[int] | None = None) -> Iterator[Path]:
        """Yield the runs at or under a path; ``left`` is how much more is looked at below a link."""
        if path.name == LAUNCH and not _stands(path / "status.json") and _stands(path / "config.yaml"):
            return  # what a launcher keeps of a run that has not begun
        if _is_run(path):
            yield path
        elif depth:
            for child, is_link in self._children(path, left):
                if not is_link:
                    yield from self.runs(child, depth - 1, left)
                elif not path.resolve().is_relative_to(child.resolve()):  # else a link to where we are in
                    yield from self.runs(child, min(depth, _LINK_DEPTH) - 1, left or [_MOST_LINKED])

    def _children(self, path: Path, left: list[int] | None) -> list[tuple[Path, bool]]:
        found: list[tuple[Path, bool]] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._left -= 1
                    if left:
                        left[0] -= 1
                    if self._left < 0 or (left and left[0] < 0):
                        self.unseen.append(path)
                        break
                    if not entry.name.startswith(".") and not _ASIDE.fullmatch(entry.name) and entry.is_dir():
                        found.append((path / entry.name, entry.is_symlink()))
        except OSError:  # no such root yet, or not ours to read
            return []
        return found


def names_of(path: Path) -> tuple[str, str, int | None]:
    """Return experiment, task and seed of a run by its path; an experiment may be several folders deep."""
    *above, experiment, task, seed = ("", "", *path.resolve().parts)
    depth = _experiment(path).count("/")
    whole = "/".join([*above[len(above) - depth :], experiment])
    return whole if whole == _experiment(path) else experiment, task, int(seed) if seed.isdecimal() else None


def _experiment(path: Path) -> str:
    """Return what the config says the experiment is called, without reading all of it; empty where it does not."""
    try:
        text = read_bytes(path / "config.yaml", _MOST_BYTES).decode()
    except (DataError, UnicodeDecodeError):
        return ""
    line = next((line for line in text.splitlines() if line.startswith("experiment:")), "")
    return line.partition(":")[2].strip().strip("'\"")


def _optional(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _columns(path: Path, wanted: Callable[[str], bool]) -> dict[str, Series]:
    points: dict[str, list[tuple[float, float]]] = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        step = _optional(row.get("step"))
        if step is None:
            raise DataError(f"{path}: line {number} has no step")
        for key in filter(wanted, row):
            value = _optional(row[key])
            if value is not None:
                points.setdefault(key, []).append((step, value))
    table = {key: np.array(pairs, dtype=np.float64) for key, pairs in points.items()}
    return {key: Series(pairs[:, 0], pairs[:, 1]) for key, pairs in table.items()}
