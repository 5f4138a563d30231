"""Tables in a text that are made from summaries beside it, and made anew by one command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.core.options import Options
from roboloop.track.report.document import sections
from roboloop.track.report.markdown import document
from roboloop.track.summary import RunSummary, without_success
from roboloop.track.summary_file import load

_BEGIN = "<!-- roboloop report "
_END = "<!-- end of report -->"
_PART = re.compile(rf"({re.escape(_BEGIN)}(.*?) -->\n)(.*?)({re.escape(_END)})", re.DOTALL)


def refreshed(text: str, folder: Path) -> str:
    """Return a Markdown text with its marked parts made anew; the mark says what they are made of."""
    if text.count(_BEGIN) != len(_PART.findall(text)) or text.count(_END) != len(_PART.findall(text)):
        raise DataError(f"a part that begins with '{_BEGIN}...' must end with '{_END}', one after another")
    return _PART.sub(lambda part: f"{part[1]}\n{_tables(part[2], folder)}\n{part[4]}", text)


def _tables(mark: str, folder: Path) -> str:
    options = Options(prog="roboloop report", allow_abbrev=False)
    options.add_argument("summaries", nargs="+")
    options.add_argument("--only", required=True)
    options.add_argument("--runs", default="", help="names of experiments, by commas; all where none are named")
    options.add_argument("--by-return", action="store_true")
    options.add_argument("--group-by", default="experiment/task")
    try:
        words = shlex.split(mark)
    except ValueError as error:  # a quote that is not closed
        raise DataError(f"'{_BEGIN}{mark} -->' cannot be read: {error}") from None
    known = options.parse_args(words)
    runs: list[RunSummary] = [run for name in known.summaries for run in load(folder / name)]
    if known.runs:
        wanted = known.runs.split(",")
        missing = set(wanted) - {run.experiment for run in runs}
        if missing:
            raise DataError(f"{' '.join(known.summaries)} has no runs of {', '.join(sorted(missing))}")
        runs = [run for run in runs if run.experiment in wanted]
    runs = [without_success(run) for run in runs] if known.by_return else runs
    return document("", sections(runs, only=known.only.split(","), group_by=known.group_by), with_headings=False)
