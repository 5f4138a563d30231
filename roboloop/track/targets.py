"""Returns that were reached, against the returns that were asked for: what a Decision Transformer is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.track.curves import grouped
from roboloop.track.plots import dress, lettered, look, our_style, write
from roboloop.track.report.scores import asked, final_evaluation
from roboloop.track.stats import Floats
from roboloop.track.summary import RunSummary


class Reached(NamedTuple):
    """Mean returns of the runs of one group."""

    label: str
    by_target: Mapping[float, Floats]
    """Of each run that was asked for it."""
    unasked: Floats
    """Of each run that was asked for nothing."""


@our_style()
def plot_targets(runs: Sequence[RunSummary], out: Path) -> Path:
    """Draw the evaluations of runs over their targets; a run without targets is a level line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    members = grouped(runs, lambda run: (run.experiment, run.task, run.seed))
    groups = [reached(label, of_group) for label, of_group in members.items()]
    asked = sorted({target for group in groups for target in group.by_target})
    if not asked:
        first = runs[0].name if runs else "no runs given"
        raise DataError(f"{first}: no held-out evaluation with a target that is finished (eval RUN --target R ...)")
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(asked, asked, ":", color="#999999", label="as asked")
    for index, group in enumerate(groups):
        colour, _ = look(index)
        if group.by_target:
            targets, means = list(group.by_target), list(group.by_target.values())
            seeds = max(map(len, means))
            axes.fill_between(targets, [m.min() for m in means], [m.max() for m in means], color=colour, alpha=0.16)
            label = lettered(f"{group.label} ({_seeds(seeds)})")
            axes.plot(targets, [m.mean() for m in means], "-o", color=colour, label=label)
        if len(group.unasked):
            low, high = float(group.unasked.min()), float(group.unasked.max())
            axes.axhspan(low, high, color=colour, alpha=0.1)
            label = lettered(f"{group.label}, no target ({_seeds(len(group.unasked))})")
            axes.axhline(float(group.unasked.mean()), linestyle="--", color=colour, label=label)
    dress(axes, "return")
    axes.set_xlabel("Return that was asked for")
    axes.set_ylabel("Return that was reached")
    figure.legend(loc="outside lower center", frameon=False)
    write(figure, out)
    return out


def reached(label: str, runs: Sequence[RunSummary]) -> Reached:
    """Return the outcome of the held-out evaluations of one group that count, by what they were asked for."""
    by_target: dict[float, list[float]] = {}
    unasked: list[float] = []
    for run in runs:
        wishes = {asked(each): each.special["target"] for each in run.evaluations if set(each.special) == {"target"}}
        for wish, target in wishes.items():
            if (found := final_evaluation(run, wish)) and isinstance(target, int | float):
                by_target.setdefault(float(target), []).append(found.whole.mean_return)
        if found := final_evaluation(run):
            unasked.append(found.whole.mean_return)
    return Reached(label, {target: np.array(by_target[target]) for target in sorted(by_target)}, np.array(unasked))


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"mean of {count} seeds, min to max"
