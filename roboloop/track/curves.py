"""Learning curves as numbers: what one run logged, which runs make one line, and the line with its band."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from roboloop.core.errors import ConfigError, nearest
from roboloop.track.read import Series, names_of, read_matching, read_timing
from roboloop.track.stats import Floats, bootstrap_band, iqm, mean

MEASURES = ("success", "return")
SOURCES = ("eval", "train")
MOST_POINTS = 100
"""Per curve: more cannot be told apart in a picture."""
IQM_SEEDS = 4
"""With fewer, the middle half is everything."""

T = TypeVar("T")


class Curve(NamedTuple):
    """One run's measure over steps, and the wall seconds of the same points (empty without a timing log)."""

    step: Floats
    wall_s: Floats
    value: Floats


class Traced(NamedTuple):
    """A run as it is drawn: who it is, and its curves by metric."""

    experiment: str
    task: str
    seed: int | None
    curves: Mapping[str, Curve]


class Group(NamedTuple):
    """The runs that make one line: per measure, one curve per run that logged it."""

    label: str
    source: str
    seeds: int
    curves: Mapping[str, list[Curve]]


class CurveLine(NamedTuple):
    """The line of several curves and its band, where all of them have data."""

    x: Floats
    centre: Floats
    low: Floats
    high: Floats


def read_curves(run: Path) -> dict[str, Curve]:
    """Return success and return of a run, and of each of its tasks, by metric: of evaluations, or else of training."""
    found = read_matching(run, _is_measure)
    evaluated = {key: series for key, series in found.items() if key.startswith("eval/")}
    wall = read_timing(run)["wall_s"]
    thin = _last_of_each if evaluated else _mean_of_each
    return {key: _curve(series, wall, thin) for key, series in (evaluated or found).items()}


def traced(run: Path) -> Traced:
    """Return what is drawn of a run directory."""
    return Traced(*names_of(run), read_curves(run))


def shown_as(experiments: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the names under which experiments are shown; those of one name are one method."""
    for name in names:
        if name not in experiments:
            raise ConfigError(f"no run is of the experiment {name!r}{nearest(name, experiments)}")
    return [names.get(experiment, experiment) for experiment in experiments]


def make_group(label: str, runs: Sequence[Mapping[str, Curve]]) -> Group:
    """Return the line that runs make, of each measure of each task that any of them logged."""
    # one source per group: a line that mixes greedy and exploring episodes would mean nothing
    source = "eval" if any(key.startswith("eval/") for curves in runs for key in curves) else "train"
    names = dict.fromkeys(key.partition("/")[2] for curves in runs for key in curves if key.startswith(source))
    measured = {
        name: [curves[f"{source}/{name}"] for curves in runs if f"{source}/{name}" in curves]
        for name in dict.fromkeys([*MEASURES, *names])
    }
    return Group(label, source, max(map(len, measured.values())), measured)


def grouped(
    items: Sequence[T], names: Callable[[T], tuple[str, str, int | None]], group_by: str = "experiment/task"
) -> dict[str, list[T]]:
    """Return the items that make one line, by its name, from their experiments, tasks and seeds."""
    fields = ("experiment", "task", "seed")
    wanted = group_by.split("/")
    for name in wanted:
        if name not in fields:
            raise ConfigError(f"cannot group runs by {name!r}: {', '.join(fields)}{nearest(name, fields)}")
    found: dict[str, list[T]] = {}
    for item in sorted(items, key=lambda item: (names(item)[2] is not None, names(item)[2] or 0)):
        parts = dict(zip(fields, names(item), strict=True))
        found.setdefault("/".join(str(parts[name]) for name in wanted), []).append(item)
    return dict(sorted(found.items(), key=lambda entry: entry[0].split("/")))


def summarise(xs: Sequence[Floats], ys: Sequence[Floats]) -> CurveLine | None:
    """Return the centre and band of several curves where all have data, or of whichever do where they share nothing."""
    if not xs:
        return None
    shared = on_one_grid(xs, ys)
    if shared is None:  # seeds that were evaluated at different steps are drawn all the same
        return _of_whichever(xs, ys)
    grid, table = shared
    if len(table) < IQM_SEEDS:
        return CurveLine(grid, mean(table.T), table.min(axis=0), table.max(axis=0))
    return CurveLine(grid, iqm(table.T), *bootstrap_band(table, iqm))


def _of_whichever(xs: Sequence[Floats], ys: Sequence[Floats]) -> CurveLine:
    """Return at each point the mean, minimum and maximum of the curves that reach it."""
    grid = np.unique(np.concatenate(xs))
    reached = np.stack([(grid >= x[0]) & (grid <= x[-1]) for x in xs])
    table = np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
    centre = np.where(reached, table, 0.0).sum(axis=0) / reached.sum(axis=0)
    low, high = (np.where(reached, table, end) for end in (np.inf, -np.inf))
    return CurveLine(grid, centre, low.min(axis=0), high.max(axis=0))


def on_one_grid(xs: Sequence[Floats], ys: Sequence[Floats]) -> tuple[Floats, Floats] | None:
    """Return the points that all curves reach and their values there, ``[curves, points]``; None without such."""
    if not xs:
        return None
    first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
    grid = np.unique(np.concatenate(xs))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        return None
    longest = max(map(len, xs))
    if len(grid) > longest:  # the curves were not logged at the same points: their union would only add jitter
        grid = np.linspace(first, last, longest)
    return grid, np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])


def described(group: Group) -> str:
    """Return a group's line of the legend."""
    if group.seeds >= IQM_SEEDS:
        how = f"IQM of {group.seeds} seeds, 95 % bootstrap interval"
    elif group.seeds > 1:
        how = f"mean of {group.seeds} seeds, min to max"
    else:
        how = f"{group.seeds} seed"
    return f"{group.label} ({how}{'' if group.source == 'eval' else '; training episodes'})"


def time_unit(groups: Sequence[Group]) -> tuple[str, float]:
    """Return the largest unit, and its seconds, of which the longest run has at least three."""
    curves = [curve for group in groups for measured in group.curves.values() for curve in measured]
    longest_s = max((float(curve.wall_s[-1]) for curve in curves if len(curve.wall_s)), default=0.0)
    units = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
    return next(((name, unit_s) for name, unit_s in units if longest_s >= 3 * unit_s), units[-1])


def _is_measure(key: str) -> bool:
    source, _, rest = key.partition("/")
    return source in SOURCES and rest.partition("/")[0] in MEASURES


def _curve(series: Series, wall: Series, thin: Callable[[Floats, Floats], tuple[Floats, Floats]]) -> Curve:
    order = np.argsort(series.step, kind="stable")
    step, value = thin(series.step[order], series.value[order])
    if not len(wall.step):
        return Curve(step, np.empty(0), value)
    order = np.argsort(wall.step, kind="stable")
    # training starts at zero seconds; a clock that seems to go back (a log cut by a crash) stands still
    steps, seconds = np.r_[0.0, wall.step[order]], np.maximum.accumulate(np.r_[0.0, wall.value[order]])
    return Curve(step, np.interp(step, steps, seconds), value)


def _mean_of_each(step: Floats, value: Floats) -> tuple[Floats, Floats]:
    """Return at most ``MOST_POINTS`` points, each the mean of its neighbours: single episodes say little."""
    bins = _bins(step)
    size = np.bincount(bins)
    return np.bincount(bins, step) / size, np.bincount(bins, value) / size


def _last_of_each(step: Floats, value: Floats) -> tuple[Floats, Floats]:
    """Return at most ``MOST_POINTS`` points as they are, the last among them: evaluations are means already."""
    ends = np.r_[np.flatnonzero(np.diff(_bins(step))), len(step) - 1]
    return step[ends], value[ends]


def _bins(step: Floats) -> NDArray[np.int64]:
    """Return the number of each point's bin, one bin for each step where those are few enough."""
    edges = np.linspace(step[0], step[-1], MOST_POINTS + 1)[1:-1]
    _, bins = np.unique(np.searchsorted(edges, step) if len(step) > MOST_POINTS else step, return_inverse=True)
    return bins
