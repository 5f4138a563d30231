"""The verb ``envs match``: one robot in several engines, compared as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.options import Options
from roboloop.envs.headless import prefer_egl
from roboloop.envs.legged.make import find_robot
from roboloop.envs.legged.match import FACTS, Match, match
from roboloop.envs.legged.model import SUBSTEP_S
from roboloop.envs.legged.suite import ENGINES, ROBOTS
from roboloop.envs.legged.world import CONTROL_S
from roboloop.track.plots import our_style, write
from roboloop.track.terminal import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = (1, 5, 10, 25, 50)
"""Control steps whose divergence the table shows."""


def match_engines(args: list[str]) -> int:
    """Compare a robot in several engines."""
    options = Options(prog="roboloop envs match", allow_abbrev=False)
    options.add_argument("robot", help=f"one of {', '.join(ROBOTS)}")
    options.add_argument("engines", nargs="*", help="such as bullet dart mujoco-heavy; all three unless given")
    options.add_argument("--poses", type=int, default=20, help="poses at which descriptions are compared")
    options.add_argument("--rollouts", type=int, default=10)
    options.add_argument("--steps", type=int, default=50, help="control steps of a rollout")
    options.add_argument("--out", type=Path, help="write the divergence as a picture")
    known = options.parse_args(args)
    if min(known.poses, known.rollouts, known.steps) < 1:
        raise ConfigError("envs match: --poses, --rollouts and --steps must be at least 1")
    prefer_egl()
    found = match(
        find_robot(known.robot),
        tuple(dict.fromkeys(known.engines)) or ENGINES,
        known.poses,
        known.rollouts,
        known.steps,
    )
    print(report(found))
    if known.out:
        with our_style():
            write(draw(found), known.out)
        print(f"picture: {known.out}")
    return 0


def report(found: Match) -> str:
    """Return the tables."""
    head = ("greatest difference from the description", "unit", *found.engines)
    facts = [
        (fact, unit, *(f"{found.facts[fact][engine]:.1e}" for engine in found.engines)) for fact, unit in FACTS.items()
    ]
    first = found.engines[0]
    shown = [k for k in SHOWN if k <= len(found.flight_m[first])]
    rows = [
        (
            f"{name}, {k} control steps ({k * CONTROL_S:.2f} s)",
            "mm",
            *(f"{1e3 * way[e][k - 1]:.3f}" for e in found.engines),
        )
        for name, way in (("free flight", found.flight_m), ("on the floor", found.contact_m))
        for k in shown
    ]
    drop = ("lowest foot of a limp robot let go", "m", *(f"{found.drop_m[e].min():.4f}" for e in found.engines))
    apart = (f"links apart from {first}'s under the same torques, median of the RMS", "unit", *found.engines)
    return "\n\n".join(
        (f"{found.robot} in {', '.join(found.engines)}", table([head, *facts]), table([apart, *rows, drop]))
    )


def draw(found: Match) -> Figure:
    """Return the divergence in free flight and on the floor, and a drop."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    flight, contact, drop = figure.subplots(1, 3)
    for axes, ways, title in ((flight, found.flight_m, "free flight"), (contact, found.contact_m, "on the floor")):
        _curves(axes, {name: 1e3 * way for name, way in ways.items() if name != found.engines[0]}, CONTROL_S)
        axes.set(title=title, yscale="log", ylabel=f"links apart from {found.engines[0]}'s, mm")
    _curves(drop, found.drop_m, SUBSTEP_S)
    drop.set(title="a limp robot let go", ylabel="lowest foot, m")
    figure.suptitle(f"{found.robot}: {', '.join(found.engines)}")
    return figure


def _curves(axes: Axes, ways: dict[str, np.ndarray], period_s: float) -> None:
    for name, way in ways.items():
        axes.plot((1 + np.arange(len(way))) * period_s, way, label=name)
    axes.set(xlabel="seconds")
    axes.grid(alpha=0.3)
    if ways:
        axes.legend()
