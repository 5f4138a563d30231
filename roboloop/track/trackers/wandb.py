"""Weights & Biases: a run inside the run directory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from roboloop.core.errors import ConfigError, DataError, needs_extra
from roboloop.core.files import own_directory, remove, replace_atomic
from roboloop.track.trackers.ids import saved_id
from roboloop.track.trackers.tracker import TrackedRun


class Wandb:
    """Offline unless WANDB_MODE is ``online``; ``wandb sync`` uploads an offline run."""

    def __init__(self) -> None:
        self._offline = os.environ.get("WANDB_MODE") != "online"
        if self._offline:  # crash reports would go over the network even in offline mode
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with needs_extra("tracker wandb", ("wandb",), "wandb"):
            import wandb
        self._wandb = wandb

    def open(self, run: TrackedRun) -> None:
        """Begin the W&B run of this directory again; one on the server goes on where it ends."""
        folder = own_directory(run.path / "wandb")
        for settings in (place / name / "settings" for place in (run.path, Path()) for name in ("wandb", ".wandb")):
            if os.path.lexists(settings):
                keep = "keep what you need of it in ~/.config/wandb/settings, or leave out wandb"
                raise DataError(f"{settings} could send the run and your key elsewhere: {keep}")
        options, own = run.config["wandb"], saved_id(folder / "id.txt") or uuid.uuid4().hex
        replace_atomic(folder / "id.txt", own.encode())
        try:
            self._run = self._wandb.init(
                project=options["project"],
                entity=options["entity"] or None,
                dir=run.path,
                id=own,
                name=run.name,
                group=f"{run.experiment}/{run.task}",
                config=dict(run.config),
                mode="offline" if self._offline else "online",
                resume=None if self._offline else "allow",
                reinit="create_new",
                # our progress line owns the terminal; versions and git are in meta.json
                settings=self._wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
            )
        except (self._wandb.errors.UsageError, self._wandb.errors.AuthenticationError) as error:
            raise ConfigError(f"tracker wandb: {' '.join(str(error).split())}") from error
        current = Path(self._run.dir).resolve().parent
        for old in folder.resolve().glob(f"offline-run-*-{self._run.id}"):
            if old != current:
                remove(old)
        # an evaluation in the background comes after later rows, and W&B's own axis never goes back
        self._run.define_metric("eval/*", step_metric="eval/step")
        self._first = self._last = self._run.step

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Log one row; what the server has of a resumed run cannot be replaced, and is equal."""
        if step < self._first:
            return
        self._last = max(step, self._last)
        axis = {"eval/step": step} if any(name.startswith("eval/") for name in row) else {}
        self._run.log({**row, **axis}, step=self._last)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()
