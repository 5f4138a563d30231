"""The verb ``runs``: a table of runs, once or again and again, with those that wait for their turn."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.options import Options
from roboloop.core.processes import memory_bytes
from roboloop.core.stop import StopRequest
from roboloop.core.text import printable
from roboloop.launch.job import Job
from roboloop.launch.plan import planned_runs
from roboloop.track.read import RunInfo, find_runs
from roboloop.track.terminal import duration, table

HEADER = ("run", "state", "steps", "success", "return", "steps/s", "ETA", "slot", "memory")
_BUSY = ("running", "starting")
_OVER = ("done", "damaged")


class Row(NamedTuple):
    """One run, begun or not."""

    path: Path
    state: str
    info: RunInfo | None
    steps: int
    slot: int | None
    memory_bytes: int | None


def runs(args: list[str]) -> int:
    """List runs, once or until Ctrl-C."""
    options = Options(prog="roboloop runs", allow_abbrev=False)
    options.add_argument("root", nargs="?", type=Path, default=Path("runs"))
    options.add_argument("--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="again and again")
    known = options.parse_args(args)
    if known.watch is not None and not known.watch > 0:
        raise ConfigError(f"--watch must be more than 0 seconds, not {known.watch:g}")
    text = show(known.root)
    if known.watch is None:
        print(text)
        return 0
    return _follow(known.root, known.watch)


def show(root: Path, sum_first: bool = False) -> str:
    """Return all runs at or under a root as a table, and what they come to."""
    rows = look(root)
    if not rows:
        raise DataError(f"no runs under {root}")
    parts = [table([HEADER, *(_cells(row, root) for row in rows)]), *([summary(rows)] if len(rows) > 1 else [])]
    return "\n".join(parts[::-1] if sum_first else parts)


def look(root: Path, most: int | None = None) -> list[Row]:
    """Return all runs at or under a root: those that were begun, then those of sweeps that wait; ``most`` of each."""
    planned = planned_runs(root)
    begun = [_row(info.path, info, planned.get(info.path, info.steps)) for info in find_runs(root, most)]
    paths = {row.path for row in begun}
    waiting = [path for path in planned if path not in paths]
    return begun + [_row(path, None, planned[path]) for path in waiting[:most]]


def summary(rows: list[Row]) -> str:
    """Return how many runs are how, and how long all that is left will take at the present speed."""
    counts = Counter(row.state for row in rows)
    text = f"{len(rows)} runs: {', '.join(f'{number} {state}' for state, number in counts.most_common())}"
    wanted = [row for row in rows if row.state in (*_BUSY, "queued")]
    left = sum(max(row.steps - (row.info.step if row.info else 0), 0) for row in wanted)
    speed = sum(row.info.steps_per_s or 0.0 for row in rows if row.info and row.state == "running")
    return f"{text}; ETA {duration(left / speed)}" if wanted and speed else text


def _row(path: Path, info: RunInfo | None, steps: int) -> Row:
    job = Job(path)
    facts = job.facts()
    state = info.state if info else str(facts.get("ended") or "queued")
    if state == "stopped" and facts.get("ended") == "pruned":  # such a run says only that it was stopped
        state = "pruned"
    pid = job.pid if state not in _OVER else None
    if pid and state != "running":
        state = "starting"
    elif state not in (*_BUSY, *_OVER) and job.is_held():
        state = "held"
    slot = facts.get("slot") if state in _BUSY else None
    return Row(path, state, info, steps, slot, memory_bytes(pid) if pid else None)


def _cells(row: Row, root: Path) -> tuple[str, ...]:
    info = row.info or RunInfo(row.path, "", "", None, row.state)
    running = row.state == "running"
    return (
        printable(row.path.relative_to(root) if row.path.is_relative_to(root) else row.path),
        row.state,
        f"{info.step}/{row.steps}",
        "-" if info.last_success is None else f"{info.last_success:.0%}",
        "-" if info.last_return is None else f"{info.last_return:.1f}",
        "-" if info.steps_per_s is None else f"{info.steps_per_s:.0f}",
        duration(info.eta_s) if running and info.eta_s is not None else "-",
        "-" if row.slot is None else printable(row.slot),
        "-" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.0f} MB",
    )


def _follow(root: Path, period_s: float) -> int:
    from rich.live import Live
    from rich.text import Text

    with StopRequest() as stop:
        if not sys.stdout.isatty():
            while not stop:
                print(show(root), end="\n\n", flush=True)
                _wait(period_s, stop)
            return 0
        # on a screen of its own, since a table that is higher than the window would leave its head behind each time
        with Live(auto_refresh=False, screen=True) as live:
            while not stop:
                live.update(Text(show(root, sum_first=True), no_wrap=True, overflow="crop"), refresh=True)
                _wait(period_s, stop)
    return 0


def _wait(period_s: float, stop: StopRequest) -> None:
    """Sleep, but no longer than until somebody asks for the end."""
    until_s = time.monotonic() + period_s
    while not stop and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))
