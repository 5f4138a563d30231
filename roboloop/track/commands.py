"""The verb that draws curves; ``runs`` is in ``launch/watch.py``, since it also knows what waits."""

from __future__ import annotations

import sys
from pathlib import Path

from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.track.curves import Traced, shown_as, traced
from roboloop.track.read import find_runs
from roboloop.track.summary import RunSummary, read_summary, renamed
from roboloop.track.summary_file import load
from roboloop.track.whole import lost_rows


def plot(args: list[str]) -> int:
    """Overlay the curves of runs; a directory of runs stands for all of them, a summary for those in it."""
    options = Options(prog="roboloop plot", allow_abbrev=False)
    options.add_argument("runs", nargs="+", type=Path, help="run directories, directories of runs, or summaries")
    options.add_argument("--targets", action="store_true", help="returns reached over returns asked for")
    add_names(options)
    options.add_argument("--out", type=Path, default=Path("curve.png"))
    known = options.parse_args(args)
    if known.targets:
        from roboloop.track.targets import plot_targets

        found = [run for path in known.runs for run in _summaries(path)]
        print(printable(plot_targets(renamed(found, dict(known.names)), known.out)))
        return 0
    from roboloop.track.plots import plot_runs

    runs = [run for path in known.runs for run in _traced(path)]
    for line in [line for path in known.runs if path.is_dir() for run in _directories(path) for line in lost_rows(run)]:
        print(printable(line), file=sys.stderr)
    names = shown_as([run.experiment for run in runs], dict(known.names))
    drawn = [run._replace(experiment=name) for run, name in zip(runs, names, strict=True)]
    print(printable(plot_runs(drawn, known.out)))
    return 0


def add_names(options: Options) -> None:
    """Let experiments be shown under other names."""
    options.add_argument(
        "--as", dest="names", nargs=2, action="append", default=[], metavar=("EXPERIMENT", "NAME"),
        help="show an experiment under another name; those of one name are one method",
    )  # fmt: skip


def _directories(path: Path) -> list[Path]:
    return [info.path for info in find_runs(path)] or [path]


def _summaries(path: Path) -> list[RunSummary]:
    return load(path) if path.is_file() else [read_summary(run, with_logs=False) for run in _directories(path)]


def _traced(path: Path) -> list[Traced]:
    return [run.traced for run in load(path)] if path.is_file() else [traced(run) for run in _directories(path)]
