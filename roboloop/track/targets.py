"""Returns that were reached, against the returns that were asked for: what a Decision Transformer is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.track.curves import members
from roboloop.track.plots import dress, look, write
from roboloop.track.read import read_eval
from roboloop.track.stats import Floats


class Reached(NamedTuple):
    """Mean returns of the runs of one group."""

    label: str
    by_target: Mapping[float, Floats]
    """Of each run that was asked for it."""
    unasked: Floats
    """Of each run that was asked for nothing."""


def plot_targets(runs: Sequence[Path], out: Path) -> Path:
    """Draw the evaluations of runs over their targets; a run without targets is a level line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [reached(label, paths) for label, paths in members(runs).items()]
    asked = sorted({target for group in groups for target in group.by_target})
    if not asked:
        raise DataError(
            f"{runs[0] if runs else 'no runs given'}: no evaluation with a target (eval RUN --target R ...)"
        )
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
            label = f"{group.label} ({_seeds(seeds)})"
            axes.plot(targets, [m.mean() for m in means], "-o", color=colour, label=label)
        if len(group.unasked):
            low, high = float(group.unasked.min()), float(group.unasked.max())
            axes.axhspan(low, high, color=colour, alpha=0.1)
            label = f"{group.label}, no target ({_seeds(len(group.unasked))})"
            axes.axhline(float(group.unasked.mean()), linestyle="--", color=colour, label=label)
    dress(axes, "return")
    axes.set_xlabel("Return that was asked for")
    axes.set_ylabel("Return that was reached")
    figure.legend(loc="outside lower center", frameon=False)
    write(figure, out)
    return out


def reached(label: str, runs: Sequence[Path]) -> Reached:
    """Read the evaluations of the runs of one group; of several checkpoints the last one counts."""
    by_target: dict[float, list[float]] = {}
    unasked: list[float] = []
    for run in runs:
        for target, mean in _means(run).items():
            (unasked if target is None else by_target.setdefault(target, [])).append(mean)
    return Reached(label, {target: np.array(by_target[target]) for target in sorted(by_target)}, np.array(unasked))


def _means(run: Path) -> dict[float | None, float]:
    newest: dict[float | None, list[dict[str, Any]]] = {}
    evaluations = [rows for rows in read_eval(run).values() if len(rows) > 1 and "checkpoint_step" in rows[0]]
    for rows in sorted(evaluations, key=lambda rows: int(rows[0]["checkpoint_step"])):
        newest[rows[0].get("target")] = rows[1:]
    return {target: float(np.mean([row["return"] for row in rows])) for target, rows in newest.items()}


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"mean of {count} seeds, min to max"
