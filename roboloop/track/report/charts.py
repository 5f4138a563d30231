"""The section of curves: success and return over steps and time, profiles and efficiency over tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from roboloop.track.curves import MEASURES, Curve, Group, described, make_group, on_one_grid, summarise, time_unit
from roboloop.track.report.blocks import Block, Chart, Legend, Section, Stroke
from roboloop.track.report.scores import several_tasks
from roboloop.track.stats import Floats, efficiency, profile, profile_band, stratified_band
from roboloop.track.summary import RunSummary

_CROWD = 4  # groups; with more, single runs would hide the lines
_MOST_TASKS = 6  # with more, one chart each would be too many to look at
_LEVELS = np.linspace(0.0, 1.0, 51)[:-1]  # above 1 there is nothing

_NO_BAND = (np.empty(0), np.empty(0))


def curves(groups: Mapping[str, Sequence[RunSummary]]) -> Section:
    """Return charts of success and return, over steps and over wall time, one line per group."""
    lines = {label: make_group(label, [run.curves for run in runs]) for label, runs in groups.items()}
    tasks = {label: ", ".join(sorted({run.task for run in runs})) for label, runs in groups.items()}
    if len(set(tasks.values())) > _MOST_TASKS:  # one set of charts for all
        return Section("curves", "Curves", tuple(_charts(list(lines.values()))))
    blocks: list[Block] = []
    for task in dict.fromkeys(tasks.values()):  # returns of different tasks have no common scale
        blocks += _charts([line for label, line in lines.items() if tasks[label] == task])
    return Section("curves", "Curves", tuple(blocks))


def _charts(lines: Sequence[Group]) -> list[Block]:
    unit, unit_s = time_unit(lines)
    axes: dict[str, Callable[[Curve], Floats]] = {
        "steps": lambda curve: curve.step,
        f"training time in {unit}": lambda curve: curve.wall_s / unit_s,
    }
    charts: list[Block] = []
    for measure in MEASURES:
        for x_label, x_of in axes.items():
            strokes = _strokes(lines, measure, x_of)
            if strokes:
                caption = f"{measure.capitalize()} over {x_label}"
                charts.append(Chart(caption, x_label, measure, strokes, measure == "success"))
    return [Legend(tuple(described(line) for line in lines)), *charts] if charts else []


def _strokes(lines: Sequence[Group], measure: str, x_of: Callable[[Curve], Floats]) -> tuple[Stroke, ...]:
    strokes: list[Stroke] = []
    for look, line in enumerate(lines):
        drawn = [(x, curve.value) for curve in line.curves[measure] if len(x := x_of(curve))]
        xs, ys = [x for x, _ in drawn], [y for _, y in drawn]
        if len(drawn) > 1 and len(lines) <= _CROWD:
            strokes += [Stroke(look, _plain(x), _plain(y), is_faint=True) for x, y in drawn]
        found = summarise(xs, ys)
        if found is not None:
            low, high = (found.low, found.high) if len(drawn) > 1 else _NO_BAND
            strokes.append(Stroke(look, _plain(found.x), _plain(found.centre), _plain(low), _plain(high)))
    return tuple(strokes)


def over_tasks(runs: Sequence[RunSummary]) -> Section:
    """Return performance profiles and sample-efficiency curves of methods that were tried on several tasks."""
    scores = several_tasks(runs)
    if scores is None:
        return Section("over-tasks", "Over tasks", ())
    several = {name: list(of_task.values()) for name, of_task in scores.methods.items()}
    profiles = []
    for look, table in enumerate(several.values()):
        low, high = profile_band(table, _LEVELS) if max(map(len, table)) > 1 else _NO_BAND
        shares = _plain(profile(table, _LEVELS))
        profiles.append(Stroke(look, _plain(_LEVELS), shares, _plain(low), _plain(high)))
    caption = f"Performance profile: share of runs on tasks with more success than this, by {scores.source}"
    blocks: list[Block] = [
        Legend(tuple(f"{name} ({len(table)} tasks)" for name, table in several.items())),
        Chart(caption, "success", "share of runs", tuple(profiles), True, True),
    ]
    strokes = [stroke for look, name in enumerate(several) if (stroke := _efficiency(runs, name, look))]
    if strokes:
        caption = "Sample efficiency: IQM of success over tasks and seeds, with its 95 % stratified bootstrap interval"
        blocks.append(Chart(caption, "steps", "success", tuple(strokes), True))
    return Section("over-tasks", "Over tasks", tuple(blocks))


def _efficiency(runs: Sequence[RunSummary], method: str, look: int) -> Stroke | None:
    """Return the IQM over tasks and seeds of one method, where all its curves have data."""
    of_task: dict[str, list[Curve]] = {}
    for run in runs:
        if run.experiment == method:
            for task, curve in _successes(run).items():
                of_task.setdefault(task, []).append(curve)
    everything = [curve for each in of_task.values() for curve in each]
    shared = on_one_grid([curve.step for curve in everything], [curve.value for curve in everything])
    if shared is None:
        return None
    grid, table = shared
    tables = np.split(table, np.cumsum([len(each) for each in of_task.values()])[:-1])
    low, high = stratified_band(tables) if max(map(len, tables)) > 1 else _NO_BAND
    return Stroke(look, _plain(grid), _plain(efficiency(tables)), _plain(low), _plain(high))


def _successes(run: RunSummary) -> dict[str, Curve]:
    of_tasks = {key.split("/", 2)[2]: curve for key, curve in run.curves.items() if key.startswith("eval/success/")}
    whole = run.curves.get("eval/success")
    return of_tasks or ({run.task: whole} if whole is not None else {})


def _plain(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
