"""What the page draws: lines of runs, or of groups of seeds with their bands, thinned to the picture's width."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.dash.series import Column, Logs, Stamp, smooth, stamp_of, thin, union
from roboloop.track.curves import MOST_POINTS, summarise
from roboloop.track.read import AFTERWARDS
from roboloop.track.stats import Floats

AXES = ("steps", "wall", "updates")
LOGS = ("metrics.jsonl", "timing.jsonl", AFTERWARDS)
_TENS = np.array([float(f"1e{power}") for power in range(301)])
_MOST_NUMBERS = 1_000_000
"""Kept of lines that were made, of all together."""


@dataclass(frozen=True)
class ChartView:
    """How curves are looked at."""

    key: str
    x: str = "steps"
    smoothing: float = 0.0
    """How much the value before counts, below 1."""
    columns: int = 800
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.x not in AXES:
            raise ConfigError(f"x is one of {', '.join(AXES)}, not {self.x!r}{nearest(self.x, AXES)}")
        if not 0 <= self.smoothing < 1:
            raise ConfigError("smoothing is from 0 to below 1")
        if not 10 <= self.columns <= 4000:
            raise ConfigError("columns are from 10 to 4000")


@dataclass(frozen=True)
class Member:
    """One run as curves know it."""

    run_id: str
    path: Path
    group: str


class Curves:
    """Lines of views; what did not change since it was last asked for is not made again."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._made: OrderedDict[Any, Any] = OrderedDict()
        self._num_kept = 0

    def keys(self, runs: Sequence[Path]) -> list[str]:
        """Return the names of all that runs logged: their metrics, then what the machine did."""
        return union([self.logs.keys(run / name) for name in LOGS for run in runs])

    def version(self, runs: Sequence[Path]) -> str:
        """Return what changes when any of the logs does, or when sketches have become whole."""
        stamps = tuple(stamp_of(run / name) for run in runs for name in LOGS)
        return f"{hash((stamps, self.logs.num_read)) & 0xFFFFFFFFFFFF:x}"

    def lines(self, members: Sequence[Member], view: ChartView) -> list[dict[str, Any]]:
        """Return one line for each run that logged the key."""
        return [line for member in members if (line := self._line(member, view))]

    def bands(self, members: Sequence[Member], view: ChartView) -> list[dict[str, Any]]:
        """Return one line with its band for each group of which any run logged the key."""
        groups: dict[str, list[Member]] = {}
        for member in members:
            groups.setdefault(member.group, []).append(member)
        found = (self._band(name, group, view) for name, group in groups.items())
        return [band for band in found if band]

    def _line(self, member: Member, view: ChartView) -> dict[str, Any] | None:
        stamps = self._stamps([member])
        name = (member.run_id, view)
        known = self._made.get(name)
        if known and known[0] == stamps:
            line: dict[str, Any] | None = known[1]
            return line
        x, y, is_whole = self._values(member.path, view)
        if not len(x):
            return None
        shown_x, shown_y = thin(x, y, view.columns, *_limits(x, view))
        line = {"id": member.run_id, "x": _short(shown_x), "y": _short(shown_y), "points": len(x), "whole": is_whole}
        if is_whole:
            self._remember(name, stamps, line)
        return line

    def _band(self, group: str, members: Sequence[Member], view: ChartView) -> dict[str, Any] | None:
        stamps = self._stamps(members)
        name = (group, tuple(member.run_id for member in members), view)
        known = self._made.get(name)
        if known and known[0] == stamps:
            band: dict[str, Any] | None = known[1]
            return band
        found = [self._values(member.path, view) for member in members]
        found = [each for each in found if len(each[0])]
        if not found:
            return None
        whole = all(each[2] for each in found)
        pairs = [_mean_of_cells(x, y, view) for x, y, _ in found]
        pairs = [pair for pair in pairs if len(pair[0])]
        line = summarise([x for x, _ in pairs], [y for _, y in pairs])
        if line is None:
            return None
        band = {"id": group, "seeds": len(pairs), "whole": whole, "points": sum(len(x) for x, _, _ in found)}
        band |= {"x": _short(line.x), "y": _short(line.centre), "low": _short(line.low), "high": _short(line.high)}
        if whole:
            self._remember(name, stamps, band)
        return band

    def _values(self, run: Path, view: ChartView) -> tuple[Floats, Floats, bool]:
        """Return the places and values of a key of a run, in order."""
        column = next((c for name in LOGS if len((c := self.logs.column(run / name, view.key)).step)), None)
        if column is None:
            return np.empty(0), np.empty(0), True
        order = np.argsort(column.step, kind="stable")
        step, value = column.step[order], smooth(column.value[order], view.smoothing)
        if view.x == "steps":
            return step, value, column.is_whole
        at = self.logs.column(run / ("timing.jsonl" if view.x == "wall" else "metrics.jsonl"), _AXIS_KEYS[view.x])
        if not len(at.step):
            return np.empty(0), np.empty(0), True
        return _place(step, at), value, column.is_whole and at.is_whole

    def _stamps(self, members: Sequence[Member]) -> tuple[Stamp | None, ...]:
        return tuple(stamp_of(member.path / name) for member in members for name in LOGS)

    def _remember(self, name: Any, stamps: Any, made: Mapping[str, Any]) -> None:
        self._num_kept += _size(made) - (_size(self._made.pop(name)[1]) if name in self._made else 0)
        self._made[name] = stamps, made
        while len(self._made) > 1 and self._num_kept > _MOST_NUMBERS:
            _, (_, old) = self._made.popitem(last=False)
            self._num_kept -= _size(old)


def _size(line: Mapping[str, Any]) -> int:
    return sum(len(line[name]) for name in ("x", "y", "low", "high") if name in line)


_AXIS_KEYS = {"wall": "wall_s", "updates": "updates"}


def _place(step: Floats, at: Column) -> Floats:
    """Return where on another axis steps are; training starts at zero, and an axis that seems to go back stands."""
    order = np.argsort(at.step, kind="stable")
    known, place = np.r_[0.0, at.step[order]], np.maximum.accumulate(np.r_[0.0, at.value[order]])
    placed: Floats = np.interp(step, known, place)
    return placed


def _limits(x: Floats, view: ChartView) -> tuple[float, float]:
    return (float(x[0]) if view.low is None else view.low, float(x[-1]) if view.high is None else view.high)


def _mean_of_cells(x: Floats, y: Floats, view: ChartView) -> tuple[Floats, Floats]:
    """Return the means of neighbours, few enough for a band."""
    low, high = _limits(x, view)
    inside = (x >= low) & (x <= high)
    x, y = x[inside], y[inside]
    if len(x) <= MOST_POINTS:
        return x, y
    cells = np.minimum(((x - low) * (MOST_POINTS / max(high - low, 1e-12))).astype(np.int64), MOST_POINTS - 1)
    size = np.bincount(cells, minlength=MOST_POINTS)
    filled = size > 0
    sums = [np.bincount(cells, column, minlength=MOST_POINTS)[filled] / size[filled] for column in (x, y)]
    return sums[0], sums[1]


def _short(numbers: Floats) -> list[float]:
    """Return numbers in six digits, rounded all at once: formatting them one by one took as long as reading them."""
    size = np.abs(numbers)
    digits = 5 - np.floor(np.log10(np.where(size > 0, size, 1.0))).astype(np.int64)
    # one of the two is 1, and powers of ten are exact up to 1e22: what comes out is the nearest to its six digits
    up, down = (_TENS[np.clip(power, 0, len(_TENS) - 1)] for power in (digits, -digits))
    short: list[float] = (np.rint(numbers / down * up) / up * down).tolist()
    return short
