"""The run directory is the public interface: the only place that knows what is on disk, and who may write there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from roboloop.core.config import override, read_file, to_dict
from roboloop.core.errors import ConfigError, DataError, RunExists, nearest
from roboloop.core.files import (
    is_there,
    make_directory,
    read_json,
    replace_atomic,
    replace_durable,
    sync_directory,
    take_lock,
    write_durable,
)
from roboloop.envs.registry import task_name
from roboloop.run.config import Experiment
from roboloop.track.read import boot_id, find_runs

_PACKAGES = ("roboloop", "torch", "numpy", "gymnasium", "mujoco", "metaworld", "dm_control", "safetensors")
_FORKING = "forking"
"""In a directory whose journal and checkpoints are copies that may not be whole: a new start clears them away."""
_BEGUN = {"lock", "meta.json", "status.json", ".status.json.tmp", ".config.yaml.tmp", "launch"}
"""All that is there of a run whose process was killed while it was created: nothing that could be lost.

``launch`` is made by whoever starts the run (``roboloop/launch/job.py``).
"""


class RunDir:
    """One run on disk, held by one process at a time."""

    def __init__(self, path: Path, config: Experiment, lock: IO[str] | None) -> None:
        self.path = path
        self.config = config
        self._lock = lock
        self._started_unix_s = time.time()
        self.checkpoints = path / "checkpoints"
        self.journal = path / "journal"
        self.metrics = path / "metrics.jsonl"
        self.timing = path / "timing.jsonl"
        self.dataset = path / "dataset"

    @staticmethod
    def free_path(config: Experiment) -> Path:
        """Return ``runs/<experiment>/<task>/<seed>``; one that exists is left alone and named."""
        path = run_path(config)
        if is_there(path / "config.yaml"):
            raise RunExists(_exists_message(path))
        is_foreign = path.is_dir() and any(p.name not in _BEGUN for p in path.iterdir())
        if is_foreign and not (path / _FORKING).exists():
            raise DataError(f"{path} exists and is not a run directory: choose another --experiment or --runs-dir")
        return path

    @classmethod
    def create(cls, config: Experiment, command: Sequence[str]) -> RunDir:
        """Make a new run directory and hold it."""
        run = cls._begin(config, command)
        run.save_config(config)  # last: from here on it is a run
        return run

    @classmethod
    def _begin(cls, config: Experiment, command: Sequence[str]) -> RunDir:
        path = cls.free_path(config)
        make_directory(path)
        run = cls(path, config, take_lock(path, "running in"))
        if (path / _FORKING).exists():
            for left in [p for p in path.iterdir() if p.name not in _BEGUN and p.name != _FORKING]:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            (path / _FORKING).unlink()
        replace_durable(path / "meta.json", json.dumps(_meta(command), indent=1).encode())
        run.write_status("running", {"step": 0, "steps": config.steps})
        return run

    @classmethod
    def open(cls, path: Path, write: bool = False) -> RunDir:
        """Open an existing run, to read it or (with the lock) to go on with it."""
        if not (path / "config.yaml").is_file():
            siblings = [str(path.parent / p.name) for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise DataError(f"{path} is not a run directory{nearest(str(path), siblings)}")
        try:
            config = override(Experiment(), read_file(path / "config.yaml"))
        except ConfigError as error:
            raise DataError(f"run directory {path} cannot be read: {error}") from None
        lock = take_lock(path, "running in") if write else None
        if write:
            (path / _FORKING).unlink(missing_ok=True)  # a run is whole once it has a config
        return cls(path, config, lock)

    def save_config(self, config: Experiment) -> None:
        """Write the resolved config."""
        import yaml

        self.config = config
        replace_atomic(self.path / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False).encode())
        sync_directory(self.path)

    def write_status(self, state: str, facts: dict[str, Any]) -> None:
        """Say how the run is doing, for ``roboloop runs`` and for whoever starts it again."""
        status = {
            "state": state,
            "pid": os.getpid(),
            "host": platform.node(),
            "boot_id": boot_id(),
            "started_unix_s": self._started_unix_s,
            "updated_unix_s": time.time(),
            **facts,
        }
        replace_atomic(self.path / "status.json", json.dumps(status).encode())

    def status(self) -> dict[str, Any]:
        """Return the last status written."""
        status: dict[str, Any] = read_json(self.path / "status.json")
        return status

    def fork(self, config: Experiment, step: int, command: Sequence[str]) -> RunDir:
        """Make a new run that begins as this one was at a step, with its buffer and metrics as they were then."""
        from roboloop.data import journal
        from roboloop.run import checkpoint

        source = checkpoint.at_step(self.checkpoints, step)
        run = RunDir._begin(config, command)
        write_durable(run.path / _FORKING, b"")
        sync_directory(run.path)
        journal.copy(self.journal, run.journal, source.journal)
        for name, offset in source.log_offsets.items():
            write_durable(run.path / name, (self.path / name).read_bytes()[:offset])
        run.checkpoints.mkdir()
        temporary = run.checkpoints / f".tmp-{source.path.name}"
        temporary.mkdir()
        for file in source.path.iterdir():
            write_durable(temporary / file.name, file.read_bytes())
        sync_directory(temporary)
        os.rename(temporary, run.checkpoints / source.path.name)
        sync_directory(run.checkpoints)
        run.save_config(config)  # all is copied: from here on it is a run, and what it began as is found by a resume
        (run.path / _FORKING).unlink()
        return run

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            self._lock.close()


def find_run(name: Path) -> Path:
    """Return the run that a path or the name of an experiment under runs/ stands for, if it is the only one there."""
    found = find_runs(name) or find_runs(Path("runs") / name)
    if len(found) > 1:
        raise ConfigError(f"{name} stands for {len(found)} runs: name one of them, such as {found[0].path}")
    return found[0].path if found else name


def run_path(config: Experiment) -> Path:
    """Return where the run of a config lives."""
    return Path(config.runs_dir) / config.experiment / task_name(config.env.id) / str(config.seed)


def _exists_message(path: Path) -> str:
    state = read_json(path / "status.json").get("state", "unknown") if (path / "status.json").exists() else "unknown"
    if state == "done":
        return f"{path} is finished: use another --seed or --experiment, or --resume {path} --steps MORE to go on"
    try:
        take_lock(path, "running in").close()
    except RunExists as running:
        return str(running)
    return f"{path} exists and was interrupted: --resume {path} goes on from its last checkpoint"


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are there."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _meta(command: Sequence[str]) -> dict[str, Any]:
    return {
        "created_unix_s": time.time(),
        "command": ["roboloop", *command],
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": installed(_PACKAGES),
        "git": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
    }


def _git(*args: str) -> str:
    try:
        here = Path(__file__).parent
        done = subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
