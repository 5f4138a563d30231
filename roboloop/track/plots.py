"""Learning curves as one picture: success and return, against steps and against wall time."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from roboloop.core.errors import DataError
from roboloop.core.files import replace_atomic, writing
from roboloop.core.text import printable
from roboloop.track.curves import MEASURES, Group, Traced, described, grouped, make_group, summarise, time_unit
from roboloop.track.stats import Floats
from roboloop.track.terminal import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CROWD = 4  # groups; with more, single runs would hide the lines
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#555555")
_Style: TypeAlias = Literal["-", "--", ":"]
_STYLES: tuple[_Style, ...] = ("-", "--", ":")
_GREY = "#666666"


@contextmanager
def our_style() -> Iterator[None]:
    """Draw by matplotlib's defaults: it reads the matplotlibrc of the working directory, which may ask for TeX."""
    try:
        from matplotlib import rc_context, rcdefaults
    except UnicodeDecodeError as error:
        raise DataError(f"matplotlib reads ./matplotlibrc, which is no text: {error}") from None
    with rc_context():
        rcdefaults()
        yield


def plot_runs(runs: Sequence[Traced], out: Path, group_by: str = "experiment/task") -> Path:
    """Write the learning curves of runs as a PNG, one line per group."""
    groups = made_groups(runs, group_by)
    if not any(group.curves[measure] for group in groups for measure in MEASURES):
        where = f"{runs[0].experiment}/{runs[0].task}" if runs else "no runs given"
        raise DataError(f"{where}: nothing to plot yet, no success or return was logged")
    with our_style():
        write(_draw(groups), out)
    return out


def made_groups(runs: Sequence[Traced], group_by: str = "experiment/task") -> list[Group]:
    """Return the lines that runs make."""
    lines = grouped(runs, lambda run: (run.experiment, run.task, run.seed), group_by)
    return [make_group(label, [run.curves for run in members]) for label, members in lines.items()]


def write(figure: Figure, out: Path) -> None:
    """Write a picture whole or not at all."""
    with writing(out):
        replace_atomic(out, _png(figure))


def _draw(groups: Sequence[Group]) -> Figure:
    # the figure is made without pyplot: no global state, no window, safe in a thread of the dashboard
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    unit, unit_s = time_unit(groups)
    crowded = len(groups) > _CROWD
    measures = [measure for measure in MEASURES if any(group.curves[measure] for group in groups)]
    legend_rows = math.ceil(len(groups) / _legend_columns(groups))
    figure = Figure(figsize=(11, 0.6 + 3.3 * len(measures) + 0.22 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(measures), 2, sharex="col", sharey="row", squeeze=False)
    for row, measure in enumerate(measures):
        for index, group in enumerate(groups):
            curves = group.curves[measure]
            values = [curve.value for curve in curves]
            _draw_group(axes[row, 0], index, [curve.step for curve in curves], values, crowded)
            timed = [curve for curve in curves if len(curve.wall_s)]
            _draw_group(axes[row, 1], index, [c.wall_s / unit_s for c in timed], [c.value for c in timed], crowded)
        dress(axes[row, 0], measure)
        dress(axes[row, 1], measure)
        axes[row, 0].set_ylabel({"success": "Success", "return": "Return"}[measure])
    axes[-1, 0].set_xlabel("Environment steps")
    axes[-1, 1].set_xlabel(f"Training time ({unit})")
    axes[-1, 0].xaxis.set_major_formatter(lambda x, _: count(x))
    figure.align_ylabels(axes[:, 0])
    _legend(figure, groups)
    return figure


def _png(figure: Figure) -> bytes:
    """Return a PNG of 256 colours: a third of the size, and no eye sees it in lines on white."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def look(index: int) -> tuple[str, _Style]:
    """Return colour and line style of a group: colours first (safe for colour-blind eyes), then styles."""
    return _COLOURS[index % len(_COLOURS)], _STYLES[index // len(_COLOURS) % len(_STYLES)]


def lettered(text: str) -> str:
    """Return a name as it is drawn: any character has a shape, and a dollar begins no formula."""
    return printable(text).replace("$", r"\$")


def _draw_group(axes: Axes, index: int, xs: Sequence[Floats], ys: Sequence[Floats], crowded: bool) -> None:
    colour, style = look(index)
    summary = summarise(xs, ys)
    if len(xs) > 1 and not crowded:
        for x, y in zip(xs, ys, strict=True):
            axes.plot(x, y, color=colour, linewidth=0.7, marker=_dot(x), markersize=3, alpha=0.3, zorder=2)
    if summary is None:
        return
    if len(xs) > 1:
        alpha = 0.08 if crowded else 0.16
        axes.fill_between(summary.x, summary.low, summary.high, color=colour, alpha=alpha, linewidth=0, zorder=1)
    dot = _dot(summary.x)
    axes.plot(summary.x, summary.centre, style, color=colour, linewidth=2.0, marker=dot, markersize=4, zorder=3)


def _dot(x: Floats) -> str | None:
    return "o" if len(x) == 1 else None  # a line of one point is invisible


def dress(axes: Axes, measure: str) -> None:
    """Give axes of a measure their grid, frame and numbers."""
    axes.grid(True, color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(color="#AAAAAA", labelcolor="#333333")
    if measure == "success":
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
    else:
        axes.yaxis.set_major_formatter(lambda y, _: count(y))
    if not axes.lines:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color=_GREY)


def _legend(figure: Figure, groups: Sequence[Group]) -> None:
    from matplotlib.lines import Line2D

    looks = [look(index) for index in range(len(groups))]
    handles = [Line2D([], [], color=colour, linestyle=style, linewidth=2) for colour, style in looks]
    texts = [lettered(described(group)) for group in groups]
    figure.legend(handles, texts, loc="outside lower center", ncols=_legend_columns(groups), frameon=False)


def _legend_columns(groups: Sequence[Group]) -> int:
    longest = max((len(described(group)) for group in groups), default=0)
    return max(1, min(len(groups), 150 // (longest + 6)))  # about 150 characters fit below the panels
