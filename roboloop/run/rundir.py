"""The run directory is the public interface: the only place that knows what is on disk, and who may write there."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from roboloop.core.config import override, read_sealed, to_dict
from roboloop.core.errors import ConfigError, DataError, RunExists, nearest
from roboloop.core.files import (
    is_there,
    make_directory,
    open_new,
    open_regular,
    read_bytes,
    read_json,
    remove,
    replace_atomic,
    replace_durable,
    sync_directory,
    take_lock,
    write_durable,
)
from roboloop.core.packages import bringing, installed
from roboloop.core.sealed import seal_text
from roboloop.core.text import printable
from roboloop.data import journal
from roboloop.envs import registry
from roboloop.run import checkpoint, trust
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.config import Experiment, identity, renewed
from roboloop.track.read import aside, boot_id, find_runs

_PACKAGES = ("roboloop", "torch", "numpy", "gymnasium", "safetensors")
"""What every run is made with."""
_FORKING = "forking"
"""In a directory whose journal and checkpoints are copies that may not be whole: a new start clears them away."""
_FOLDERS = ("checkpoints", "journal", "dataset", "recorded", "eval", "events", "plots", "videos", "launch")
_ALWAYS = ("experiment", "seed", "steps", "env", "sample", "algo", "replay", "update", "eval", "checkpoint")
"""Keys that the config of a run has had in every version."""
_BEGUN = {"lock", "meta.json", "status.json", ".meta.json.tmp", ".status.json.tmp", ".config.yaml.tmp", "launch"}
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
                remove(left)
            remove(path / _FORKING)
        replace_durable(path / "meta.json", json.dumps(_meta(command, config), indent=1).encode())
        run.write_status("running", {"step": 0, "steps": config.steps})
        return run

    @classmethod
    def move_aside(cls, config: Experiment) -> Path | None:
        """Rename the run that stands where this config's would be, if there is one; a running one is refused."""
        path = run_path(config)
        if not path.exists():
            return None
        with take_lock(path, "running in"):
            old = aside(path)
            path.rename(old)
        return old

    @classmethod
    def open(cls, path: Path, write: bool = False, check_names: bool = True) -> RunDir:
        """Open an existing run, to read it or (with the lock) to go on with it.

        A config that names code which nobody vouches for is refused. Who only looks, or checks it later, says so.
        """
        if not is_there(path / "config.yaml"):
            siblings = [str(path.parent / p.name) for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise DataError(f"{path} is not a run directory{nearest(str(path), siblings)}")
        for name in _FOLDERS:
            if (path / name).is_symlink():
                raise DataError(f"{path / name} is a symbolic link: it is not followed")
        try:
            config = _read_config(path / "config.yaml")
        except ConfigError as error:
            raise DataError(f"run directory {path} cannot be read: {error}") from None
        if check_names:
            trust.check(config, path / "config.yaml")
            try:
                config.check()
            except ConfigError as error:
                raise DataError(f"run directory {path} cannot be used: config.yaml: {error}") from None
        lock = take_lock(path, "running in") if write else None
        if write:
            remove(path / _FORKING)  # a run is whole once it has a config
        return cls(path, config, lock)

    def save_config(self, config: Experiment) -> None:
        """Write the resolved config, sealed, so that what is not what was written is found."""
        import yaml

        self.config = config
        # a comment, so that a run's config is also a file for --config
        text = f"# format {checkpoint.FORMAT}\n" + yaml.safe_dump(to_dict(config), sort_keys=False)
        replace_durable(self.path / "config.yaml", seal_text(text))

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
        """Return the last status written; nothing where it was lost, since a run goes on without it."""
        try:
            status = read_json(self.path / "status.json")
        except DataError:
            return {}
        return status if isinstance(status, dict) else {}

    @property
    def is_done(self) -> bool:
        """Whether the run says that it reached the end that its config has."""
        status = self.status()
        step = status.get("step")
        return status.get("state") == "done" and isinstance(step, int) and step >= self.config.steps

    def pick(self, which: str, tell: Callable[[str], None] = print) -> Checkpoint:
        """Return the checkpoint called 'best', 'last' or by its step."""
        if which not in ("best", "last"):
            if not which.isdecimal():
                raise DataError(f"--checkpoint must be 'best', 'last' or a step, not {which!r}")
            return self.checkpoint_at(int(which))
        for point in self.newest_checkpoints(lambda said: tell(printable(said))):
            with point.fits():
                best = int(point.state["best"]["step"])
            if which == "best" and best < 0:
                tell(f"no checkpoint was evaluated in training: taking the last, of step {point.step}")
            if which == "best" and best in checkpoint.steps(self.checkpoints):
                return self.checkpoint_at(best)
            if which == "best" and best >= 0:
                tell(f"the best checkpoint, of step {best}, is gone: taking the last, of step {point.step}")
            return point
        raise DataError(f"{self.path} has no checkpoint that verifies")

    def checkpoint_at(self, step: int) -> Checkpoint:
        """Read the checkpoint of one step."""
        return self._checked(checkpoint.at_step(self.checkpoints, step))

    def newest_checkpoints(self, tell: Callable[[str], None]) -> Iterator[Checkpoint]:
        """Yield the checkpoints that verify, newest first, and say which ones do not."""
        return map(self._checked, checkpoint.newest_first(self.checkpoints, tell))

    def _checked(self, point: Checkpoint) -> Checkpoint:
        point.check_config(identity(self.config))
        return point

    def fork(self, config: Experiment, step: int, command: Sequence[str]) -> RunDir:
        """Make a new run that begins as this one was at a step, with its buffer and metrics as they were then."""
        source = self.checkpoint_at(step)
        run = RunDir._begin(config, command)
        write_durable(run.path / _FORKING, b"")
        sync_directory(run.path)
        journal.copy(self.journal, run.journal, source.journal)
        for name in (self.metrics.name, self.timing.name):
            _copy_log(self.path / name, run.path / name, source.logs[name].offset)
        checkpoint.copy(source, run.checkpoints, identity(config))
        run.save_config(config)  # all is copied: from here on it is a run, and what it began as is found by a resume
        (run.path / _FORKING).unlink()
        return run

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            self._lock.close()


def _read_config(path: Path) -> Experiment:
    """Return the config of a run, and not a part of it that defaults would fill up."""
    data, made = read_sealed(path), _format_of(read_bytes(path))
    if made > checkpoint.FORMAT:
        raise ConfigError(f"{path} has format {made}, this version reads {checkpoint.OLDEST} to {checkpoint.FORMAT}")
    if made == checkpoint.FORMAT:
        config = override(Experiment(), data)
    else:
        data = renewed(data)
        try:
            config = override(Experiment(), data)
        except ConfigError as error:
            raise ConfigError(f"{error} ({checkpoint.older(made)})") from None
    if missing := [name for name in _ALWAYS if name not in data]:
        raise ConfigError(f"{path} is not whole: it has no key '{missing[0]}'")
    return config


def _format_of(text: bytes) -> int:
    """Return the format that a config says of its run; the first one that did is 3."""
    found = re.match(rb"(?:# sha256 \w+\n)?# format (\d{1,6})\n", text)
    return int(found[1]) if found else checkpoint.OLDEST


def _copy_log(source: Path, target: Path, offset: int) -> None:
    """Copy the beginning of a log; one that is shorter is copied as far as it goes."""
    with contextlib.suppress(FileNotFoundError), open_regular(source) as old, os.fdopen(open_new(target), "wb") as new:
        left = offset
        while left and (data := old.read(min(left, 1 << 20))):
            new.write(data)
            left -= len(data)
        new.flush()
        os.fsync(new.fileno())


def find_run(name: Path) -> Path:
    """Return the run that a path or the name of an experiment under runs/ stands for, if it is the only one there."""
    found = find_runs(name) or find_runs(Path("runs") / name)
    if len(found) > 1:
        raise ConfigError(f"{name} stands for {len(found)} runs: name one of them, such as {found[0].path}")
    return found[0].path if found else name


def run_path(config: Experiment) -> Path:
    """Return where the run of a config lives."""
    return Path(config.runs_dir) / config.experiment / registry.task_name(config.env.id) / str(config.seed)


def _exists_message(path: Path) -> str:
    try:
        run = RunDir.open(path, check_names=False)
        if run.is_done:
            return f"{path} is finished: use another --seed or --experiment, or --resume {path} --steps MORE to go on"
        take_lock(path, "running in").close()
    except (DataError, RunExists) as error:
        return str(error)
    return f"{path} exists and was interrupted: --resume {path} goes on from its last checkpoint"


def _packages(config: Experiment) -> list[str]:
    """Return the packages that a run is made with: ours, what its suite says that it needs, and plug-ins."""
    suite, (_, task) = registry.suite_of(config.env), registry.split(config.env.id)
    owners = (type(config.algo).__module__, type(config.env).__module__, *suite.modules(task))
    modules = [*suite.packages, *(owner.partition(".")[0] for owner in owners)]
    return list(dict.fromkeys([*_PACKAGES, *bringing(modules).values()]))


def _meta(command: Sequence[str], config: Experiment) -> dict[str, Any]:
    return {
        "created_unix_s": time.time(),
        "command": ["roboloop", *command],
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": installed(_packages(config)),
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
