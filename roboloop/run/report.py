"""The verb ``report``: one page about many runs, or the numbers of it in a file small enough for git."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.files import replace_atomic, writing
from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.data.dataset import Dataset
from roboloop.track.commands import add_names
from roboloop.track.read import find_runs
from roboloop.track.report import markdown, page
from roboloop.track.report.document import KEYS, sections
from roboloop.track.report.refresh import refreshed
from roboloop.track.summary import RunSummary, read_summary, renamed, without_success
from roboloop.track.summary_file import load, save

_QUANTILES = (0, 0.1, 0.5, 0.9, 1)


def report(args: list[str]) -> int:
    """Write a report, a summary, or tables of a text anew."""
    options = _options()
    known = options.parse_args(args)
    if known.refresh:
        if known.runs:
            raise ConfigError("--refresh makes tables from the summaries that the text names: give no runs")
        return _refresh(known.refresh)
    runs, left_out = collect(known.runs)
    for line in left_out:
        print(f"left out: {printable(line)}", file=sys.stderr)
    for run in runs:
        for note in run.notes:
            print(printable(f"left out of {run.name}: {note}"), file=sys.stderr)
    if not runs:
        raise DataError(left_out[0] if left_out else "report needs runs: directories, or summaries of runs")
    runs = renamed(runs, dict(known.names))
    out = known.out or (None if known.md or known.save else Path("report.html"))
    only = [key for key in known.only.split(",") if key]
    judged = [without_success(run) for run in runs] if known.by_return else runs
    made = sections(judged, left_out, only, known.group_by)
    if out:
        _write(out, page.document(known.title, made, out, known.embed_mb))
    if known.md:
        _write(known.md, markdown.document(known.title, made))
    if known.save:
        print(printable(save(runs, known.save)))
    return 0


def collect(paths: Sequence[Path]) -> tuple[list[RunSummary], list[str]]:
    """Return the runs of directories and of summaries, and a line for each that cannot be used."""
    runs: list[RunSummary] = []
    left_out: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if path.is_file():
            runs += load(path) if path.resolve() not in seen else []
            seen.add(path.resolve())
            continue
        found = find_runs(path)
        if not found:
            left_out.append(f"{path}: no runs there")
        for info in found:
            if info.path.resolve() in seen:  # a directory and one above it were given
                continue
            seen.add(info.path.resolve())
            try:
                runs.append(read_summary(info.path, dataset_facts))
            except DataError as error:
                left_out.append(str(error))
    return runs, left_out


def dataset_facts(directory: Path) -> dict[str, Any]:
    """Return what a report says of a dataset; only its index is read."""
    data = Dataset.open(directory)
    returns, success = data.table["episode_return"], data.table["success"]
    known = success[~np.isnan(success)]
    return {
        "env_id": data.schema.env_id,
        "episodes": len(data),
        "steps": data.num_steps,
        "bytes": int(data.table["bytes"].sum()),
        "success": float(known.mean()) if len(known) else None,
        "return_quantiles": [float(f"{x:.6g}") for x in np.quantile(returns, _QUANTILES)] if len(returns) else [],
    }


def _options() -> Options:
    options = Options(prog="roboloop report", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.epilog = f"sections: {', '.join(KEYS)}"
    options.add_argument("runs", nargs="*", type=Path, help="run directories, directories of runs, or summaries")
    options.add_argument("--out", type=Path, metavar="FILE.html", help="one page that needs no network")
    options.add_argument("--md", type=Path, metavar="FILE.md", help="the tables as Markdown")
    options.add_argument("--save", type=Path, metavar="FILE.json", help="scores and thinned curves, for another report")
    options.add_argument("--title", default="Report")
    options.add_argument("--only", default="", metavar="KEY,KEY", help="these sections alone")
    options.add_argument("--group-by", default="experiment/task", help="what makes one line")
    add_names(options)
    options.add_argument("--by-return", action="store_true", help="judge by returns, also where success is known")
    options.add_argument("--embed-mb", type=float, default=5.0, help="videos up to this size are in the page itself")
    options.add_argument("--refresh", type=Path, nargs="+", metavar="TEXT.md", help="make the tables of texts anew")
    return options


def _refresh(texts: Sequence[Path]) -> int:
    for path in texts:
        try:
            old = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        new = refreshed(old, path.parent)
        if new != old:
            with writing(path):
                replace_atomic(path, new.encode())
        print(f"{printable(path)}: {'made anew' if new != old else 'nothing to change'}")
    return 0


def _write(out: Path, text: str) -> None:
    with writing(out):
        replace_atomic(out, text.encode(errors="backslashreplace"))
    print(printable(out))
