"""How a run is started, and how its end is learned: here, or on a machine that a cluster picks.

Elsewhere a ``Trial`` does what the launcher does here, through the same ``Job``, on storage that both see.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

from roboloop.core.config import override, to_dict
from roboloop.core.errors import DataError
from roboloop.core.files import read_bytes, replace_atomic
from roboloop.launch.job import Job
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import Planned
from roboloop.run.config import Experiment

BROKEN = 1
"""Taken for the exit code of a run that could not even be started."""
BAD_INPUT = 2
KILLED = -9
"""Taken for the exit code of a run whose machine is gone."""
LEASH = "roboloop.launch.leashed"
_SEEN = "seen-by"


class Started(Protocol):
    """A run that was started."""

    why: str
    """What is known of its end beside the exit code."""
    machine_lost: bool
    """Whether it ended because its machine did: that is no failure of the run."""

    @property
    def has_begun(self) -> bool:
        """Whether it has a machine: in a cluster it may wait for one, and its time runs only from then on."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit code; none as long as it lives, as far as is known."""
        ...

    def poll(self) -> int | None:
        """Find out whether it has ended, and return the exit code if so."""
        ...

    def send(self, number: Signals) -> bool:
        """Send a signal to it; say whether it could be reached."""
        ...


class JobEngine(Protocol):
    """Starts runs."""

    def start(self, job: Job, slot: Slot, warn: Callable[[str], None]) -> Started | None:
        """Start a run; none where it runs already."""
        ...

    def more_slots(self, known: int) -> list[Slot]:
        """Return the slots beyond so many for which there is room by now."""
        ...

    def close(self) -> None:
        """Let go of the cluster."""
        ...


class Here:
    """A run of this machine."""

    why = ""
    machine_lost = False
    has_begun = True

    def __init__(self, process: subprocess.Popen[bytes], job: Job) -> None:
        self._process, self._job = process, job

    @property
    def returncode(self) -> int | None:
        """The exit code; none as long as it lives."""
        return self._process.returncode

    def poll(self) -> int | None:
        """Return the exit code, once it has ended."""
        return self._process.poll()

    def send(self, number: Signals) -> bool:
        """Send a signal to the process that works on the run."""
        return self._job.send(number)


class Local:
    """Starts runs as processes of this machine, which outlive us."""

    def start(self, job: Job, slot: Slot, warn: Callable[[str], None]) -> Here | None:
        """Start a run in a slot."""
        process = job.start(slot, warn)
        return Here(process, job) if process else None

    def more_slots(self, known: int) -> list[Slot]:
        """Return none: this machine does not grow."""
        return []

    def close(self) -> None:
        """Hold nothing."""


@dataclass(frozen=True)
class Errand:
    """All that another machine needs to know to start a run, as plain data."""

    path: str
    config: Mapping[str, Any]
    cwd: str
    token: str

    @classmethod
    def of(cls, job: Job) -> Errand:
        """Describe a run; lay out a token beside its sweep, by which a machine knows that it sees the same storage."""
        assert job.planned is not None
        token = secrets.token_hex(8)
        replace_atomic(job.own_folder() / _SEEN, token.encode())
        return cls(str(job.path), to_dict(job.planned.config), os.getcwd(), token)


def _sees(path: Path, token: str) -> bool:
    try:
        return read_bytes(path) == token.encode()
    except DataError:
        return False


class Trial:
    """The part of an engine that is on the machine of the run; the run dies with it, so that none runs twice."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._job: Job | None = None

    def start(self, errand: Mapping[str, Any], num_cores: int, gpu: str | None) -> dict[str, Any]:
        """Start the run here; return where that is, or what is wrong."""
        told = Errand(**errand)
        host = socket.gethostname()
        if Path(told.cwd).is_dir():
            os.chdir(told.cwd)
        job = Job(Path(told.path))
        if not _sees(job.folder / _SEEN, told.token):
            where = job.path if job.path.is_absolute() else Path(told.cwd) / job.path
            return {"error": f"{host} does not see {where}: runs in a cluster need storage that all its machines share"}
        config = override(Experiment(), told.config)
        job.planned = Planned("", config.seed, {}, config)
        said: list[str] = []
        slot = Slot(0, tuple(sorted(os.sched_getaffinity(0))), num_cores, gpu)
        self._process = job.start(slot, said.append, through=("-P", "-m", LEASH, str(os.getpid())))
        self._job = job
        job.note(host=host)
        return {"host": host, "pid": self._process.pid if self._process else None}

    def poll(self) -> int | None:
        """Return the exit code, once the run has ended."""
        return self._process.poll() if self._process else None

    def send(self, number: int) -> bool:
        """Send a signal to the run."""
        return self._job.send(Signals(number)) if self._job else False
