"""All sections of a report, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from roboloop.core.errors import ConfigError, nearest
from roboloop.track.curves import grouped
from roboloop.track.report import charts, facts, results
from roboloop.track.report.blocks import Note, Section
from roboloop.track.report.truth import truth
from roboloop.track.summary import RunSummary

KEYS = (
    "final", "curves", "runs", "progress", "tasks", "compare", "over-tasks", "elsewhere", "truth", "settings",
    "protocols", "videos", "datasets", "time", "origin", "left-out",
)  # fmt: skip


def sections(
    runs: Sequence[RunSummary],
    left_out: Sequence[str] = (),
    only: Collection[str] = (),
    group_by: str = "experiment/task",
) -> list[Section]:
    """Return the sections that have anything to say, or those that are asked for."""
    for key in only:
        if key not in KEYS:
            raise ConfigError(f"a report has no section {key!r}: {', '.join(KEYS)}{nearest(key, KEYS)}")
    groups = grouped(runs, lambda run: (run.experiment, run.task, run.seed), group_by)
    notes = [*left_out, *(f"{run.name}: {note}" for run in runs for note in run.notes)]
    makers = {
        "final": lambda: results.final(groups),
        "curves": lambda: charts.curves(groups),
        "runs": lambda: results.each_run(groups),
        "progress": lambda: results.progress(groups),
        "tasks": lambda: results.tasks(groups),
        "compare": lambda: results.compare(runs),
        "over-tasks": lambda: charts.over_tasks(runs),
        "elsewhere": lambda: results.elsewhere(groups),
        "truth": lambda: truth(groups),
        "settings": lambda: facts.settings(groups),
        "protocols": lambda: facts.protocols(groups),
        "videos": lambda: facts.videos(groups),
        "datasets": lambda: facts.datasets(groups),
        "time": lambda: facts.time(groups),
        "origin": lambda: facts.origin(groups),
        "left-out": lambda: Section("left-out", "Left out", tuple(Note(note) for note in notes)),
    }
    made = [makers[key]() for key in KEYS if not only or key in only]
    return [section for section in made if section.blocks]
