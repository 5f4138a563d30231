"""The sections about how well runs did: final scores, progress, tasks, comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from roboloop.track.curves import MOST_POINTS, Curve
from roboloop.track.report.blocks import Note, Section, Table
from roboloop.track.report.scores import (
    NONE,
    Place,
    asked,
    by_task,
    earlier_evaluation,
    evaluation_in,
    final_evaluation,
    final_scores,
    has_score,
    held_out,
    places,
    pooled,
    several_tasks,
    shown,
    shown_result,
    validated,
    value_of,
    without_empty,
)
from roboloop.track.stats import (
    Interval,
    first_reached,
    improvement,
    improvement_interval,
    iqm,
    mean,
    stratified_interval,
)
from roboloop.track.summary import Evaluation, RunSummary
from roboloop.track.terminal import count

Groups = Mapping[str, Sequence[RunSummary]]
REACHED = 0.95
_COLUMNS, _ALL_COLUMNS = 8, 10
_MOST_PAIRS = 45
_SAME = 0.01


def measure_of(runs: Sequence[RunSummary]) -> str:
    """Return what runs are judged by: success where any of them knows it."""
    return "success" if any(_has(run, "success") for run in runs) else "return"


def _has(run: RunSummary, measure: str) -> bool:
    return bool(validated(run, measure) or held_out(run, measure))


def final(groups: Groups) -> Section:
    """Return one row per group: IQM over seeds and tasks with its interval, and all episodes as one."""
    rows = []
    for label, runs in groups.items():
        measure = measure_of(runs)
        evaluations = [last for run in runs if (last := final_evaluation(run))]
        steps = sorted({run.step for run in runs})
        returns = _iqm([_last_return(run) for run in runs], "return")
        is_rate = measure == "success"
        rows.append((
            label,
            str(len(runs)),
            count(steps[0]) if len(steps) == 1 else f"{count(steps[0])} to {count(steps[-1])}",
            _iqm([validated(run, measure) for run in runs], measure) if is_rate else returns,
            _iqm([held_out(run, measure) for run in runs] if is_rate else _held_returns(evaluations), measure),
            shown_result(pooled([each.whole for each in evaluations])),
            returns if is_rate else NONE,
        ))  # fmt: skip
    header = ("runs", "seeds", "steps", "in training, at the end", "held out", "all held-out episodes", "return")
    caption = (
        "IQM over seeds and tasks [95 % stratified bootstrap], none for one seed; below four values the IQM is the "
        "mean. All held-out episodes as one: success [95 % Wilson]. Return: of the last evaluation in training."
    )
    return Section("final", "Results", (without_empty(caption, header, rows),))


def _last_return(run: RunSummary) -> dict[str, float]:
    """Return a run's return over all its tasks as one: those of single tasks have no common scale."""
    curve = _whole(run, "return")
    return {} if curve is None else {"": float(curve.value[-1])}


def _held_returns(evaluations: Sequence[Evaluation]) -> list[dict[str, float]]:
    return [{"": each.whole.mean_return} for each in evaluations]


def _iqm(table: Sequence[Mapping[str, float]], measure: str) -> str:
    scores = by_task([each for each in table if each])
    if not scores:
        return NONE
    interval = stratified_interval(scores) if max(map(len, scores)) > 1 else None
    return shown(float(iqm(np.concatenate(scores))), measure, interval)


def each_run(groups: Groups) -> Section:
    """Return one row per run."""
    rows = []
    for label, runs in groups.items():
        measure = measure_of(runs)
        for run in runs:
            curve = _whole(run, measure)
            last, earlier = final_evaluation(run), earlier_evaluation(run)
            reached = None if curve is None else first_reached(curve.step, curve.value, REACHED)
            held = f"{shown_result(earlier.whole)} at {count(earlier.step)}" if earlier else NONE
            at = f" at {count(last.step)}" if last and last.step < run.step else ""
            rows.append((
                label,
                NONE if run.seed is None else str(run.seed),
                run.state,
                count(run.step),
                NONE if reached is None or measure != "success" else count(_nominal(reached)),
                shown(None if curve is None else float(curve.value[-1]), measure),
                shown_result(last.whole) + at if last else NONE,
                held,
            ))  # fmt: skip
    first = f"first at {100 * REACHED:.0f} %"
    header = ("run", "seed", "state", "steps", first, "last in training", "held out, last", "held out, earlier")
    caption = "Each run. Held-out success [95 % Wilson] or return [95 % bootstrap], also of an earlier checkpoint."
    return Section("runs", "Runs", (without_empty(caption, header, rows),))


def progress(groups: Groups) -> Section:
    """Return the values of each run at a few steps, in one table for each task."""
    blocks = []
    for task in dict.fromkeys(run.task for runs in groups.values() for run in runs):
        rows = [(label, run) for label, runs in groups.items() for run in runs if run.task == task]
        measure = measure_of([run for _, run in rows])
        curves = [(label, run.seed, curve) for label, run in rows if (curve := _whole(run, measure)) is not None]
        if not curves:
            continue
        columns = _shown_steps([curve for *_, curve in curves])
        cells = [
            (label, NONE if seed is None else str(seed), *(_cell(_at(curve, step), measure) for step in columns))
            for label, seed, curve in curves
        ]
        what = {"success": "success (%)", "return": "return"}[measure]
        rows_shown = tuple(row for row in cells if any(cell != NONE for cell in row[2:]))
        blocks.append(Table(f"{task}: {what} at steps of training.", ("run", "seed", *map(count, columns)), rows_shown))
    return Section("progress", "Progress", tuple(blocks))


def tasks(groups: Groups) -> Section:
    """Return a table for each group that learns several tasks: each task over steps, and at the end."""
    blocks = []
    for label, runs in groups.items():
        measure = measure_of(runs)
        names = list(
            dict.fromkeys(task for run in runs for task in [*validated(run, measure), *held_out(run, measure)])
        )
        if len(names) < 2:
            continue
        curves = {name: [c for run in runs if (c := _whole(run, f"{measure}/{name}")) is not None] for name in names}
        columns = _shown_steps([curve for each in curves.values() for curve in each])
        evaluations = [last for run in runs if (last := final_evaluation(run))]
        rows = []
        for name in names:
            held = shown_result(pooled([each.tasks[name] for each in evaluations if name in each.tasks]))
            rows.append((name, *(_mean_at(curves[name], step, measure) for step in columns), held))
        whole = [curve for run in runs if (curve := _whole(run, measure)) is not None]
        held = shown_result(pooled([each.whole for each in evaluations]))
        rows.append(("all", *(_mean_at(whole, step, measure) for step in columns), held))
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds, the mean of those that were evaluated then"
        percent = " in %" if measure == "success" else ""
        caption = f"{label}: {measure} of each task{percent} at steps of training ({seeds})."
        if evaluations:
            caption += " Held out: all episodes as one."
        blocks.append(without_empty(caption, ("task", *map(count, columns), "held out"), rows))
    return Section("tasks", "Tasks", tuple(blocks))


def elsewhere(groups: Groups) -> Section:
    """Return evaluations elsewhere or with a wish: a table for each environment into which several were put."""
    everything = [run for runs in groups.values() for run in runs]
    special = dict.fromkeys(asked(each) for run in everything for each in run.evaluations if each.special)
    visited = places(everything)
    shared = {wish: rows for wish, place in visited.items() if len(rows := _put_into(groups, wish, place)) > 1}
    blocks = [
        without_empty(f"Held-out episodes {wish}: {_OUTCOME_CAPTION}", ("runs", *_OUTCOME), rows)
        for wish, rows in shared.items()
    ]
    others = [
        (label, wish, *cells)
        for label, runs in groups.items()
        for wish in special
        if wish not in shared
        for cells in _outcome([final_evaluation(run, wish) for run in runs])
    ]
    if others:
        caption = f"Held-out episodes elsewhere or otherwise: {_OUTCOME_CAPTION}"
        blocks.append(without_empty(caption, ("runs", "asked for", *_OUTCOME), others))
    return Section("elsewhere", "Elsewhere", tuple(blocks))


def _put_into(groups: Groups, wish: str, place: Place) -> list[tuple[str, ...]]:
    """Return a row for each group that was put into an environment, and for those that were trained there."""
    found = {label: [evaluation_in(run, wish, place) for run in runs] for label, runs in groups.items()}
    return [(label, *cells) for label, evaluations in found.items() for cells in _outcome(evaluations)]


_OUTCOME = ("seeds", "outcome", "all episodes", "length", "each seed")
_OUTCOME_CAPTION = (
    "IQM over seeds [95 % bootstrap], of one seed the outcome of its episodes; all episodes as one; mean length in "
    "steps."
)


def _outcome(evaluations: Sequence[Evaluation | None]) -> list[tuple[str, ...]]:
    """Return the cells about evaluations of a group that were asked for the same; none where there are none."""
    found = [each.whole for each in evaluations if each]
    whole = pooled(found)
    if whole is None:
        return []
    length = NONE if whole.mean_length is None else f"{whole.mean_length:.0f}"
    if len(found) == 1:
        return [("1", shown_result(whole), NONE, length, NONE)]
    measure = "return" if whole.successes is None else "success"
    scores = [value for each in found if (value := value_of(each, measure)) is not None]
    all_episodes = shown_result(whole) if measure == "success" else NONE
    each_seed = ", ".join(shown(score, measure) for score in scores)
    return [(str(len(found)), _iqm([{"": score} for score in scores], measure), all_episodes, length, each_seed)]


def compare(runs: Sequence[RunSummary]) -> Section:
    """Return how likely one method beats another, and scores over tasks where there are several."""
    blocks: list[Table | Note] = []
    methods = list(dict.fromkeys(run.experiment for run in runs))
    pairs = list(combinations(methods, 2))
    rows = [row for pair in pairs[:_MOST_PAIRS] if (row := _pair(runs, *pair))]
    if rows:
        caption = (
            "How likely a run of the first beats a run of the second: the mean over the tasks that both have, ties "
            "count half [95 % stratified bootstrap, where both have several runs]."
        )
        blocks.append(Table(caption, ("better", "worse", "probability", "tasks", "runs", "judged by"), tuple(rows)))
    silent = [run.name for run in runs if not has_score(run)]
    if rows and silent:
        blocks.append(Note(f"Not compared, since nothing is known of how they did: {', '.join(silent)}."))
    if len(pairs) > _MOST_PAIRS:
        blocks.append(Note(f"Only the first {_MOST_PAIRS} of {len(pairs)} pairs are shown."))
    scores = several_tasks(runs)
    if scores is not None:
        caption = f"Over all tasks and seeds, by {scores.source} [95 % stratified bootstrap]."
        over = tuple(_over_tasks(name, list(of_task.values())) for name, of_task in scores.methods.items())
        blocks.append(Table(caption, ("method", "tasks", "runs", "IQM", "mean"), over))
    return Section("compare", "Comparison", tuple(blocks))


def _pair(runs: Sequence[RunSummary], first: str, second: str) -> tuple[str, ...] | None:
    """Return a row, the better one first; None where the two have no task in common."""
    scores = final_scores([run for run in runs if run.experiment in (first, second)], or_elsewhere=True)
    of_first, of_second = scores.methods.get(first, {}), scores.methods.get(second, {})
    common = [task for task in of_first if task in of_second]
    if not common:
        return None
    one, other = [of_first[task] for task in common], [of_second[task] for task in common]
    if improvement(one, other) < 0.5:
        first, second, one, other = second, first, other, one
    counts = [max(map(len, each)) for each in (one, other)]
    interval = improvement_interval(one, other) if min(counts) > 1 else None
    probability = shown(improvement(one, other), "success", interval)
    where = f" {common[0]}" if len(common) == 1 and common[0] in places(runs) else ""
    judged_by = f"{scores.measure}, {scores.source}{where}"
    return first, second, probability, str(len(common)), " and ".join(map(str, counts)), judged_by


def _over_tasks(name: str, scores: list[list[float]]) -> tuple[str, ...]:
    is_enough = max(map(len, scores)) > 1
    values = np.concatenate(scores)
    cells = []
    for statistic in (iqm, mean):
        interval: Interval | None = stratified_interval(scores, statistic=statistic) if is_enough else None
        cells.append(shown(float(statistic(values)), "success", interval))
    return name, str(len(scores)), str(max(map(len, scores))), *cells


def _whole(run: RunSummary, name: str) -> Curve | None:
    return run.curves.get(f"eval/{name}", run.curves.get(f"train/{name}"))


def _cell(value: float | None, measure: str) -> str:
    return shown(value, measure).removesuffix(" %")


def _mean_at(curves: Sequence[Curve], step: float, measure: str) -> str:
    values = [value for curve in curves if (value := _at(curve, step)) is not None]
    return _cell(float(np.mean(values)) if values else None, measure)


def _nominal(step: float) -> float:
    """Return a step in three digits: evaluations come at the first step after their time, 15003 for 15000."""
    return float(f"{step:.3g}")


def _shown_steps(curves: Sequence[Curve]) -> list[float]:
    """Return a few of the steps at which curves have values, the first and last among them."""
    steps = sorted({_nominal(step) for curve in curves for step in curve.step.tolist()})
    if len(steps) <= _ALL_COLUMNS:
        return steps
    # those of the longest curves: shorter ones, evaluated at other steps, would take up most of the columns
    longest = [curve for curve in curves if _nominal(float(curve.step[-1])) == steps[-1]]
    steps = sorted({_nominal(step) for curve in longest for step in curve.step.tolist()})
    if len(steps) <= _ALL_COLUMNS:
        return steps
    return [steps[i] for i in np.unique(np.linspace(0, len(steps) - 1, _COLUMNS).round().astype(int))]


def _at(curve: Curve, step: float) -> float | None:
    """Return a curve's value at a step, or None where it has none; a thinned curve has values everywhere."""
    nearest = int(np.abs(curve.step - step).argmin())
    if abs(curve.step[nearest] - step) <= _SAME * step:
        return float(curve.value[nearest])
    if len(curve.step) < MOST_POINTS // 2 or not curve.step[0] <= step <= curve.step[-1]:
        return None
    return float(np.interp(step, curve.step, curve.value))
