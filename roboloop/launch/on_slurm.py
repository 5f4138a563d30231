"""Runs as Slurm jobs through submitit (extra: slurm); what has ended, or is to end, is said on shared storage."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roboloop.core.errors import ConfigError, DataError, needs_extra
from roboloop.core.files import own_directory, read_bytes, remove
from roboloop.launch.engine import KILLED, Errand, Trial
from roboloop.launch.job import EXISTS, SIGNAL, SLURM, Job
from roboloop.launch.slots import Slot

TRY = "local"
"""A partition of this name is submitit's stand-in for Slurm: processes of this machine."""
MOST_JOBS = 100
_SPARE_S = 300.0
"""From a run's own limit of time to that of its Slurm job, to save in: Slurm warns jobs 90 s before it ends them."""
_TRY_MIN = 7 * 24 * 60
_POLL_S = 0.5


class OnSlurm:
    """Submits runs; Slurm says where and when."""

    def __init__(self, partition: str, cores_per_run: int, memory_mb: int, timeout_s: float = 0.0) -> None:
        with needs_extra("--on slurm", ("submitit",), "slurm"):
            import submitit
        self._submitit, self._partition, self.cores_per_run = submitit, partition, cores_per_run
        os.environ["PYTHONSAFEPATH"] = "1"  # as -P, for what submitit starts: a file of this folder is no module
        time_min = math.ceil((timeout_s + _SPARE_S) / 60) if timeout_s else None
        self._needs: dict[str, Any] = {}
        if partition == TRY:
            self._needs |= {"timeout_min": time_min or _TRY_MIN, "tasks_per_node": 1}
        else:  # without a time it is the partition's; submitit's AutoExecutor would make that five minutes
            self._needs |= {"time": time_min, "ntasks_per_node": 1, "cpus_per_task": cores_per_run}
            self._needs |= {"mem": f"{memory_mb}M" if memory_mb else None, "partition": partition or None}
        self._executor(Path())  # which tells whether there is a Slurm, before anything is begun

    def slots(self, wanted: int | None, num_runs: int | None) -> list[Slot]:
        """Return as many slots as jobs may be submitted at once."""
        return [Slot(i, (), self.cores_per_run) for i in range(min(wanted or MOST_JOBS, num_runs or MOST_JOBS))]

    def describe(self, slots: list[Slot]) -> str:
        """Return where runs go, in one line."""
        where = f"Slurm, partition {self._partition or 'by default'}"
        return f"{where}; {len(slots)} jobs at a time, {self.cores_per_run} CPUs each"

    def start(self, job: Job, slot: Slot, warn: Callable[[str], None]) -> SlurmRun:
        """Submit a run."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self._executor(own_directory(job.own_folder() / SLURM))
        about = {"job_name": f"roboloop-{job.path.name}", "gpus_per_node": int(job.on_gpu)}
        executor.update_parameters(**about, **self._needs)
        remove(job.own_folder() / SIGNAL)
        job.note(exit_code=None, host=None)
        try:
            return SlurmRun(executor.submit(run_there, asdict(Errand.of(job)), self.cores_per_run), job)
        except (FailedJobError, FailedSubmissionError, FileNotFoundError) as error:
            said = [line for line in str(error).splitlines() if line.strip()] or ["it did not say why"]
            raise ConfigError(f"--on slurm: the job of {job} was refused: {said[-1].strip()}") from None

    def more_slots(self, known: int) -> list[Slot]:
        """Return none: how many jobs may be submitted at once does not depend on machines."""
        return []

    def _executor(self, folder: Path) -> Any:
        kind = self._submitit.LocalExecutor if self._partition == TRY else self._submitit.SlurmExecutor
        try:
            return kind(folder, python=f"{shlex.quote(sys.executable)} -P")
        except RuntimeError as error:
            raise ConfigError(f"--on slurm: {str(error).splitlines()[0]}") from None

    def close(self) -> None:
        """Hold nothing: what was submitted goes on."""


class SlurmRun:
    """A submitted run."""

    machine_lost = False

    def __init__(self, submitted: Any, job: Job) -> None:
        self._submitted, self._job = submitted, job
        self.returncode: int | None = None
        self.why = ""
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether its machine has noted that it starts it."""
        self._has_begun = self._has_begun or self._job.facts().get("host") is not None
        return self._has_begun

    def poll(self) -> int | None:
        """Return the exit code that the run's machine noted, once Slurm says that it is over."""
        if self.returncode is None and self._submitted.done():
            noted = self._job.facts().get("exit_code")
            self.returncode = noted if isinstance(noted, int) else KILLED
            self.why = "" if isinstance(noted, int) else f"Slurm says {self._submitted.state}"
        return self.returncode

    def send(self, number: signal.Signals) -> bool:
        """Leave the signal where the run's machine looks; a job that has not begun, or does not hear, is cancelled."""
        if self._job.facts().get("host") is None or number == signal.SIGKILL:
            self._submitted.cancel(check=False)
        self._job.leave(number)
        return True


def _signal(wish: Path) -> int:
    """Return the signal that a run is to get; what is none is a wish that it ends."""
    try:
        return signal.Signals(int(read_bytes(wish)))
    except (DataError, ValueError):
        return signal.SIGTERM


def run_there(errand: dict[str, Any], num_cores: int) -> int:
    """Run to the end, on the machine that Slurm has picked."""
    trial = Trial()
    asked: list[int] = []
    # of Slurm itself: the job is cancelled, or will be since its time is nearly over (USR2, which submitit asks for)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, lambda *_: asked.append(signal.SIGTERM))
    answer = trial.start(errand, num_cores, None)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    job = Job(Path(errand["path"]))
    wish = job.folder / SIGNAL
    if answer["pid"] is None:  # somebody works on it
        job.note(exit_code=EXISTS)
        return EXISTS
    while (code := trial.poll()) is None:
        if os.path.lexists(wish):
            asked.append(_signal(wish))
            remove(wish)
        while asked:
            trial.send(asked.pop() or signal.SIGTERM)
        time.sleep(_POLL_S)
    job.note(exit_code=code)
    return code
