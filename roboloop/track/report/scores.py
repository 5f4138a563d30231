"""Which numbers of a run count, and how they are written down."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from roboloop.track.curves import MEASURES, SOURCES
from roboloop.track.report.blocks import Table
from roboloop.track.stats import Interval, wilson_interval
from roboloop.track.summary import Evaluation, Result, RunSummary
from roboloop.track.terminal import number

NONE = "–"
_LONGEST = 100  # characters of a setting's value
HELD_OUT, IN_TRAINING = "held-out episodes", "the end of training"

Place = Mapping[str, Any]
"""The settings of an environment that are other than those of the run."""
ByTask = Mapping[str, float]
"""One number for each task of a run; a run of one task has it under its own name."""


class Scores(NamedTuple):
    """Final scores of methods on tasks: method -> task -> one number per run."""

    measure: str
    source: str
    methods: dict[str, dict[str, list[float]]]


def final_evaluation(run: RunSummary, wish: str = "") -> Evaluation | None:
    """Return the held-out evaluation that counts: finished, of the newest checkpoint, of most episodes."""
    return max(_finished(run, wish), key=lambda each: (each.step, each.whole.episodes), default=None)


def earlier_evaluation(run: RunSummary) -> Evaluation | None:
    """Return the newest held-out evaluation of an earlier checkpoint than the one that counts."""
    last = final_evaluation(run)
    rest = [each for each in _finished(run, "") if last and each.step < last.step]
    return max(rest, key=lambda each: (each.step, each.whole.episodes), default=None)


def _finished(run: RunSummary, wish: str) -> list[Evaluation]:
    return [each for each in run.evaluations if each.is_whole and each.split == "test" and asked(each) == wish]


def asked(each: Evaluation) -> str:
    """Return what an evaluation was asked for beside its plan, in words; nothing for a plain one."""
    words = []
    for key, value in each.special.items():
        if key == "env":
            words += [f"in {v}" if k == "env.id" else f"{k} {shown_value(v)}" for k, v in value.items()]
        else:
            words.append(f"{key} {shown_value(value)}")
    return ", ".join(words)


def held_out(run: RunSummary, measure: str) -> ByTask:
    """Return the held-out scores of a run."""
    last = final_evaluation(run)
    if last is None:
        return {}
    values = {task: value_of(result, measure) for task, result in (last.tasks or {run.task: last.whole}).items()}
    return {task: value for task, value in values.items() if value is not None}


def validated(run: RunSummary, measure: str) -> ByTask:
    """Return the last scores that training logged, of evaluations or else of its own episodes."""
    for source in SOURCES:
        name = f"{source}/{measure}"
        last = {key.removeprefix(name): float(curve.value[-1]) for key, curve in run.curves.items()}
        of_tasks = {task.removeprefix("/"): value for task, value in last.items() if task.startswith("/")}
        if of_tasks:
            return of_tasks
        if "" in last:
            return {run.task: last[""]}
    return {}


def value_of(result: Result, measure: str) -> float | None:
    """Return success rate or mean return of episodes."""
    if measure == "return":
        return result.mean_return
    return None if result.successes is None else result.successes / result.episodes


def places(runs: Sequence[RunSummary]) -> dict[str, Place]:
    """Return the environments that policies were put into, by the words in which that was asked for."""
    found = [each for run in runs for each in run.evaluations if set(each.special) == {"env"}]
    return {asked(each): each.special["env"] for each in found}


def evaluation_in(run: RunSummary, wish: str, place: Place) -> Evaluation | None:
    """Return how a run did in an environment: one that it was put into, or the one it was trained in."""
    # one that is told by its settings alone is nobody else's
    is_home = "env.id" in place and all(run.config.get(key) == value for key, value in place.items())
    return final_evaluation(run, "" if is_home else wish)


def final_scores(runs: Sequence[RunSummary], or_elsewhere: bool = False) -> Scores:
    """Return what methods are compared by: held-out episodes if all runs have them, success if all runs have it.

    Runs that have no score at all, since they failed or have just begun, do not count. Where it is asked for, episodes
    in environments that all were put into come before what each reached in its own.
    """
    scored = [run for run in runs if has_score(run)]
    common = places(scored)

    def elsewhere(run: RunSummary, measure: str) -> ByTask:
        found = {wish: evaluation_in(run, wish, place) for wish, place in common.items()}
        values = {wish: value_of(each.whole, measure) for wish, each in found.items() if each}
        return {wish: value for wish, value in values.items() if value is not None}

    held, trained = _CHANCES
    for source, read in [held, (HELD_OUT, elsewhere), trained] if or_elsewhere else [held, trained]:
        for measure in MEASURES:
            table = [(run.experiment, read(run, measure)) for run in scored]
            if all(scores for _, scores in table):
                return Scores(measure, source, _collect(table))
    return Scores("return", IN_TRAINING, _collect([(run.experiment, validated(run, "return")) for run in scored]))


_CHANCES: tuple[tuple[str, Callable[[RunSummary, str], ByTask]], ...] = ((HELD_OUT, held_out), (IN_TRAINING, validated))


def has_score(run: RunSummary) -> bool:
    """Say whether anything is known of how a run did."""
    return any(read(run, measure) for _, read in _CHANCES for measure in MEASURES)


def several_tasks(runs: Sequence[RunSummary]) -> Scores | None:
    """Return the success of methods that were tried on several tasks; returns of tasks have no common scale."""
    tasks = {run.name: len(validated(run, "success") or held_out(run, "success")) for run in runs}
    alone = {method: {run.task for run in runs if run.experiment == method} for method in {r.experiment for r in runs}}
    wanted = [run for run in runs if tasks[run.name] > 1 or (tasks[run.name] and len(alone[run.experiment]) > 1)]
    scores = final_scores(wanted)
    return scores if wanted and scores.measure == "success" else None


def _collect(table: Sequence[tuple[str, ByTask]]) -> dict[str, dict[str, list[float]]]:
    methods: dict[str, dict[str, list[float]]] = {}
    for method, scores in table:
        for task, score in scores.items():
            methods.setdefault(method, {}).setdefault(task, []).append(score)
    return methods


def by_task(table: Sequence[ByTask]) -> list[list[float]]:
    """Return the scores of runs as one list for each task."""
    tasks = dict.fromkeys(task for scores in table for task in scores)
    return [[scores[task] for scores in table if task in scores] for task in tasks]


def shown_value(value: Any) -> str:
    """Return a setting's value as it is written in a config, cut where it is long."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def without_empty(caption: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table without the columns that say nothing in any row."""
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] != NONE for row in rows)]
    return Table(caption, tuple(header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def shown(value: float | None, measure: str, interval: Interval | None = None) -> str:
    """Return a value with its interval, a success in percent."""
    if value is None or not math.isfinite(value):
        return NONE
    if interval is not None and not all(map(math.isfinite, interval)):
        interval = None
    if measure == "success":
        ends = "" if interval is None else f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
        return f"{100 * value:.0f} %{ends}"
    ends = "" if interval is None else f" [{number(interval.low)}, {number(interval.high)}]"
    return f"{number(value)}{ends}"


def shown_result(result: Result | None, measure: str = "") -> str:
    """Return the outcome of episodes with its interval: success where it is known, unless a return is asked for."""
    if result is None:
        return NONE
    if measure == "return" or result.successes is None:
        return shown(result.mean_return, "return", Interval(result.return_low, result.return_high))
    rate = result.successes / result.episodes
    return shown(rate, "success", wilson_interval(result.successes, result.episodes))


def pooled(results: Sequence[Result]) -> Result | None:
    """Return the outcome of all episodes of evaluations; of the returns of several only the mean is known then."""
    if len(results) < 2:
        return results[0] if results else None
    episodes = sum(result.episodes for result in results)
    known = [result.successes for result in results if result.successes is not None]
    weights = [result.episodes for result in results]
    mean_return = float(np.average([result.mean_return for result in results], weights=weights))
    lengths = [result.mean_length for result in results if result.mean_length is not None]
    length = float(np.average(lengths, weights=weights)) if len(lengths) == len(results) else None
    successes = sum(known) if len(known) == len(results) else None
    return Result(episodes, successes, mean_return, math.nan, math.nan, length)
