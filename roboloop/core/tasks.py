"""Tasks are named by users and numbered by us."""

from __future__ import annotations

from collections.abc import Sequence

from roboloop.core.errors import ConfigError, nearest

SEPARATOR = "+"
"""Between the tasks of a set in an id: no shell and no YAML reader takes it for anything else."""


def task_index(name: str, tasks: Sequence[str], where: str) -> int:
    """Return the number of a task; an unknown name is one line that says where it stood, and the nearest."""
    if name not in tasks:
        known = f"its tasks are {', '.join(tasks)}" if tasks else "there are no named tasks"
        raise ConfigError(f"{where}: unknown task {name!r}{nearest(name, tasks)} ({known})")
    return tasks.index(name)


def forced_schedule(text: str) -> list[tuple[str, int]]:
    """Return the tasks of 'grasp:30,release' with their steps; the last one has none, for it goes on to the end."""
    parts = [part.partition(":") for part in text.split(",")]
    for name, _, steps in parts[:-1]:
        if not steps.isdecimal() or int(steps) < 1:
            raise ConfigError(f"--schedule: how many steps of {name!r}? {name}:30 for example, not {steps!r}")
    last, _, steps = parts[-1]
    if steps:
        raise ConfigError(
            f"--schedule: the last task, {last!r}, goes on until the episode ends: without {steps!r} steps"
        )
    return [(name, int(steps)) for name, _, steps in parts[:-1]] + [(last, 0)]
