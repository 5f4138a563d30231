"""The verb that draws curves; ``runs`` is in ``launch/watch.py``, since it also knows what waits."""

from __future__ import annotations

from pathlib import Path

from roboloop.core.options import Options
from roboloop.track.read import find_runs


def plot(args: list[str]) -> int:
    """Overlay the curves of runs; a directory of runs stands for all of them."""
    options = Options(prog="roboloop plot", allow_abbrev=False)
    options.add_argument("runs", nargs="+", type=Path, help="run directories, or directories of runs")
    options.add_argument("--targets", action="store_true", help="returns reached over returns asked for")
    options.add_argument("--out", type=Path, default=Path("curve.png"))
    known = options.parse_args(args)
    paths: list[Path] = []
    for path in known.runs:
        paths += [info.path for info in find_runs(path)] or [path]
    from roboloop.track.plots import plot_runs
    from roboloop.track.targets import plot_targets

    print(plot_targets(paths, known.out) if known.targets else plot_runs(paths, known.out))
    return 0
