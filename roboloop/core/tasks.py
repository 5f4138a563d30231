"""Tasks are named by users and numbered by us."""

from __future__ import annotations

from collections.abc import Sequence

from roboloop.core.errors import ConfigError, nearest


def task_index(name: str, tasks: Sequence[str], where: str) -> int:
    """Return the number of a task; an unknown name is one line that says where it stood, and the nearest."""
    if name not in tasks:
        known = f"its tasks are {', '.join(tasks)}" if tasks else "there are no named tasks"
        raise ConfigError(f"{where}: unknown task {name!r}{nearest(name, tasks)} ({known})")
    return tasks.index(name)
