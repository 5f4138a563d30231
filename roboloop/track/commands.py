"""The verbs that only read run directories: runs and plot."""

from __future__ import annotations

from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.core.options import Options
from roboloop.track.read import RunInfo, find_runs
from roboloop.track.terminal import duration, table


def runs(args: list[str]) -> int:
    """List runs."""
    options = Options(prog="roboloop runs", allow_abbrev=False)
    options.add_argument("root", nargs="?", type=Path, default=Path("runs"))
    root = options.parse_args(args).root
    found = find_runs(root)
    if not found:
        raise DataError(f"no runs under {root}")
    header = ("run", "state", "steps", "success", "return", "steps/s", "ETA")
    print(table([header, *(_row(info, root) for info in found)]))
    return 0


def _row(info: RunInfo, root: Path) -> tuple[str, ...]:
    running = info.state == "running"
    return (
        str(info.path.relative_to(root)) if info.path.is_relative_to(root) else str(info.path),
        info.state,
        f"{info.step}/{info.steps}",
        "-" if info.last_success is None else f"{info.last_success:.0%}",
        "-" if info.last_return is None else f"{info.last_return:.1f}",
        "-" if info.steps_per_s is None else f"{info.steps_per_s:.0f}",
        duration(info.eta_s) if running and info.eta_s is not None else "-",
    )


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
