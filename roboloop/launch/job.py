"""One run as its launcher knows it: what stands in ``<run>/launch/`` beside the run itself.

| file | what |
|---|---|
| ``config.yaml`` | the whole config: ``roboloop train --config`` of it is the run |
| ``output.log`` | what the run said, each start with its command |
| ``facts.json`` | slot, process, time of the last start, how it ended, and as what the launcher counts it |
| ``lock`` | held by the running process from before it exists until it is gone, however it ends |
| ``hold``, ``requeue`` | wishes of ``roboloop stop`` and ``roboloop requeue`` |
| ``slurm``, ``signal`` | what submitit keeps of a Slurm job, and a signal that the job is to hand on to the run |
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from roboloop.core.config import to_dict
from roboloop.core.errors import DataError
from roboloop.core.files import (
    is_directory,
    open_append,
    open_regular,
    own_directory,
    read_json,
    remove,
    replace_atomic,
)
from roboloop.core.processes import has_open
from roboloop.core.vouched import FLAG
from roboloop.launch.slots import Slot, pinned
from roboloop.launch.sweep import Planned, differences
from roboloop.run import trust
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir
from roboloop.track.metrics import finite
from roboloop.track.read import LAUNCH, RunInfo, boot_id, process_alive, read_run, read_status

SLURM = "slurm"
SIGNAL = "signal"
ROBOLOOP = (sys.executable, "-P", "-m", "roboloop.cli")
"""The command, whatever PATH says; -P: a file of the working directory is no module."""
EXISTS = 3
"""Exit code of whoever found somebody else at work on the run: it says nothing of the run."""
_NO_PLACE = dict.fromkeys(("slot", "cpus", "gpu"))
_TAIL_BYTES = 4096
_MOST_BYTES = 1 << 20
_LOOK_S = 1.0
"""Longer than anybody takes to look whether a lock is held."""


class Job:
    """A run that is to be brought to its end."""

    def __init__(self, path: Path, planned: Planned | None = None) -> None:
        self.path = path
        self.planned = planned
        self.folder = path / LAUNCH
        self.log = self.folder / "output.log"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def on_gpu(self) -> bool:
        """Whether the run learns on a GPU."""
        return self.planned is not None and self.planned.config.device.startswith("cuda")

    def info(self) -> RunInfo | None:
        """Return what the run says of itself; none where it has not begun, or cannot be read."""
        try:
            return read_run(self.path)
        except DataError:
            return None

    def own_folder(self) -> Path:
        """Return the folder, made if it is not there; a link in its place is refused."""
        return own_directory(self.folder)

    def facts(self) -> dict[str, Any]:
        """Return what its last launcher noted; empty where there was none."""
        if not is_directory(self.folder):
            return {}
        try:
            facts = read_json(self.folder / "facts.json", _MOST_BYTES)
        except DataError:
            return {}
        return facts if isinstance(facts, dict) else {}

    def note(self, **facts: Any) -> None:
        """Note something."""
        text = json.dumps(finite({**self.facts(), **facts}), allow_nan=False)
        replace_atomic(self.own_folder() / "facts.json", text.encode())

    @property
    def pid(self) -> int | None:
        """The process of the run, if it is known and lives on this machine."""
        info, noted = self.info(), self.facts().get("pid")
        if info is not None and info.state == "running":  # its own word is the newest
            with contextlib.suppress(DataError):
                status = read_status(self.path)
                # both, since containers of one machine share its boot and count processes each for itself
                ours = (status.get("boot_id"), status.get("host")) == (boot_id(), socket.gethostname())
                return _holder(status.get("pid"), self.path / "lock") if ours else None
        return _holder(noted, self.folder / "lock") if is_directory(self.folder) else None

    def host_elsewhere(self) -> str:
        """Return the machine that the run says it runs on, where that is not this one; empty otherwise."""
        info = self.info()
        if info is None or info.state != "running" or self.pid is not None:
            return ""
        with contextlib.suppress(DataError):
            status = read_status(self.path)
            if (status.get("boot_id"), status.get("host")) != (boot_id(), socket.gethostname()):
                return str(status.get("host") or "")
        return ""

    def is_live(self) -> bool:
        """Say whether a process works on the run, or is about to; for the launcher alone, since it tries the lock."""
        info = self.info()
        return self.is_locked() or (info is not None and info.state == "running")

    def is_done(self) -> bool:
        """Say whether nothing is left to do: the run says so, and its process ended well as far as that was seen."""
        info = self.info()
        if info is None or info.state != "done" or self.facts().get("exit_code") not in (None, 0, EXISTS):
            return False
        if self.planned is None:
            return True
        there = self._config()
        return there is not None and there.steps >= self.planned.config.steps

    def is_held(self) -> bool:
        """Say whether the user has stopped it."""
        return is_directory(self.folder) and os.path.lexists(self.folder / "hold")

    def hold(self) -> None:
        """Keep it from being started."""
        os.close(open_append(self.own_folder() / "hold"))

    def requeue(self) -> None:
        """Let it be started again, however often it failed."""
        remove(self.own_folder() / "hold")
        os.close(open_append(self.folder / "requeue"))

    def take_requeue(self) -> bool:
        """Say whether it is to be started again, once."""
        if not is_directory(self.folder):
            return False
        try:
            (self.folder / "requeue").unlink()
        except OSError:
            return False
        return True

    def command(self) -> list[str]:
        """Return what a user would type after ``roboloop`` to start the run or to go on with it."""
        assert self.planned is not None
        there, info = self._config(), self.info()
        changed = {key: new for key, _, new in differences(there, self.planned.config)} if there else {}
        is_finished = info is not None and info.state == "done" and "steps" not in changed
        if changed and not is_finished:  # the sweep is longer, or other in what a resumed run may be given anew
            flags = [word for key, value in changed.items() for word in _flag(key, value)]
            # with the flags its config is the sweep's, which the user has typed
            trusted = [FLAG] if trust.names_any(self.planned.config) else []
            return ["train", "--resume", str(self.path), *flags, *trusted]
        return ["train", "--config", str(self.folder / "config.yaml"), "--resume"]

    def start(
        self, slot: Slot, warn: Callable[[str], None], through: Sequence[str] = ()
    ) -> subprocess.Popen[bytes] | None:
        """Start the run in a slot; none if it runs already. For ``through`` see ``spawn``."""
        import yaml

        assert self.planned is not None
        config = yaml.safe_dump(to_dict(self.planned.config), sort_keys=False)
        replace_atomic(self.own_folder() / "config.yaml", config.encode())
        return self.spawn(self.command(), slot, warn, through)

    def spawn(
        self, words: Sequence[str], slot: Slot | None, warn: Callable[[str], None], through: Sequence[str] = ()
    ) -> subprocess.Popen[bytes] | None:
        """Start a command that works on the run, in a session of its own, so that it outlives us; none if one does.

        ``through`` are arguments of Python before the words of the command, for a program that becomes roboloop.
        """
        place = {"slot": slot.index, "cpus": slot.cpus, "gpu": slot.gpu} if slot else _NO_PLACE
        folder = self.own_folder()
        with os.fdopen(open_append(folder / "lock"), "a") as lock, os.fdopen(open_append(self.log), "ab") as log:
            if not take(lock):
                return None
            self.note(**place, pid=None, exit_code=None, why="", ended="", started_unix_s=time.time())
            log.write(f"$ roboloop {shlex.join(words)}\n".encode())
            log.flush()
            with pinned(slot.cpus, warn) if slot else contextlib.nullcontext():
                process = subprocess.Popen(
                    [sys.executable, *(through or ROBOLOOP[1:]), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock.fileno(),),  # the child's from now on: the kernel drops the lock when it dies
                    env={**os.environ, **(slot.variables() if slot else {})},
                )
        self.note(pid=process.pid)
        return process

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the run's process; say whether there was one, here or as a Slurm job elsewhere."""
        pid = self.pid
        if pid is None:
            heard = (self.folder / SLURM).is_dir() and bool(self.host_elsewhere())
            if heard:  # such a job outlives its launcher, and looks here for as long as it lives
                self.leave(number)
            return heard
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def leave(self, number: signal.Signals) -> None:
        """Leave a signal for the machine of a Slurm job to hand on."""
        replace_atomic(self.own_folder() / SIGNAL, str(int(number)).encode())

    def last_words(self) -> str:
        """Return the last line that the run said."""
        try:
            with open_regular(self.log) as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except (OSError, DataError):
            return ""
        said = [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]
        return said[-1] if said else ""

    def _config(self) -> Experiment | None:
        """Return the config that the run was begun with; none where it has not begun, or cannot be read."""
        try:
            return RunDir.open(self.path, check_names=False).config
        except DataError:
            return None

    def is_locked(self) -> bool:
        """Say whether a started process lives: it holds the lock that it was born with."""
        try:
            with open_regular(self.folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (OSError, DataError):
            return False
        return False


def _holder(pid: Any, lock: Path) -> int | None:
    """Return a process that a file names, if it lives and holds a lock: a copied file names the original's."""
    return pid if isinstance(pid, int) and process_alive(pid) and has_open(pid, lock) else None


def _flag(key: str, value: Any) -> list[str]:
    """Return a config key and its value as ``roboloop train`` takes them."""
    *sections, name = key.replace("_", "-").split(".")
    if isinstance(value, bool):
        return [f"--{'.'.join([*sections, name if value else f'no-{name}'])}"]
    return [f"--{'.'.join([*sections, name])}", *map(str, value if isinstance(value, list) else [value])]


def take(lock: IO[str]) -> bool:
    """Take a lock, unless it stays held: who only looks whether it is held has it for a moment."""
    deadline_s = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        else:
            return True
