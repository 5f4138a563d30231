"""Trackio: runs of all projects in one local database, which ``trackio show`` opens."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from roboloop.core.errors import ConfigError, needs_extra
from roboloop.core.files import own_directory, replace_atomic
from roboloop.track.trackers.ids import saved_id
from roboloop.track.trackers.tracker import TrackedRun


class Trackio:
    """Keeps runs where TRACKIO_DIR says; sends them to a Space or server only if Trackio's own variables name one."""

    def __init__(self) -> None:
        with needs_extra("tracker trackio", ("trackio",), "trackio"):
            import trackio
        self._trackio = trackio

    def open(self, run: TrackedRun) -> None:
        """Begin a run of Trackio, in place of the one that this directory had before."""
        project, path = run.config["trackio"]["project"], own_directory(run.path / "trackio") / "id.txt"
        if known := saved_id(path):
            self._delete(project, known)
        try:
            self._run = self._trackio.init(
                project,
                name=run.name,
                group=f"{run.experiment}/{run.task}",
                config=dict(run.config),
                embed=False,
                auto_log_cpu=False,  # timing.jsonl has both
                auto_log_gpu=False,
            )
        except ValueError as error:  # of a name or an address
            raise ConfigError(f"tracker trackio: {' '.join(str(error).split())}") from error
        replace_atomic(path, str(self._run.id).encode())

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Wait until the rows are in the database."""
        self._run.finish()

    def _delete(self, project: str, known: str) -> None:
        with contextlib.suppress(ValueError):  # no such project here
            for old in self._trackio.Api().runs(project):
                if old.id == known:
                    old.delete()
