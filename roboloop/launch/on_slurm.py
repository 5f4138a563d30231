"""Runs as Slurm jobs through submitit (extra: slurm); what has ended, or is to end, is said on shared storage."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roboloop.core.errors import ConfigError, needs_extra
from roboloop.launch.engine import EXISTS, KILLED, Errand, Trial
from roboloop.launch.job import FOLDER, Job
from roboloop.launch.slots import Slot

TRY = "local"
"""A partition of this name is submitit's stand-in for Slurm: processes of this machine."""
MOST_JOBS = 100
_SIGNAL = "signal"
_POLL_S = 0.5


class OnSlurm:
    """Submits runs; Slurm says where and when."""

    def __init__(self, partition: str, cores_per_run: int, on_gpu: bool, memory_mb: int) -> None:
        with needs_extra("--on slurm", ("submitit",), "slurm"):
            import submitit
        self._submitit, self._partition, self.cores_per_run = submitit, partition, cores_per_run
        self._needs: dict[str, Any] = {
            "cpus_per_task": cores_per_run,
            "gpus_per_node": int(on_gpu),
            "tasks_per_node": 1,
        }
        if memory_mb:
            self._needs["mem_gb"] = memory_mb / 1000
        if partition and partition != TRY:
            self._needs["slurm_partition"] = partition

    def slots(self, wanted: int | None, num_runs: int | None) -> list[Slot]:
        """Return as many slots as jobs may be submitted at once."""
        return [Slot(i, (), self.cores_per_run) for i in range(min(wanted or MOST_JOBS, num_runs or MOST_JOBS))]

    def describe(self, slots: list[Slot]) -> str:
        """Return where runs go, in one line."""
        where = f"Slurm, partition {self._partition or 'by default'}"
        return f"{where}; {len(slots)} jobs at a time, {self.cores_per_run} CPUs each"

    def start(self, job: Job, slot: Slot, warn: Callable[[str], None]) -> SlurmRun:
        """Submit a run."""
        cluster = TRY if self._partition == TRY else "slurm"
        try:
            executor = self._submitit.AutoExecutor(folder=job.folder / "slurm", cluster=cluster)
        except RuntimeError as error:
            raise ConfigError(f"--on slurm: {str(error).splitlines()[0]}") from None
        executor.update_parameters(name=f"roboloop-{job.path.name}", timeout_min=60 * 24 * 7, **self._needs)
        (job.folder / _SIGNAL).unlink(missing_ok=True)
        job.note(exit_code=None)
        return SlurmRun(executor.submit(run_there, asdict(Errand.of(job)), self.cores_per_run), job)

    def close(self) -> None:
        """Hold nothing: what was submitted goes on."""


class SlurmRun:
    """A submitted run."""

    machine_lost = False

    def __init__(self, submitted: Any, job: Job) -> None:
        self._submitted, self._job = submitted, job
        self.returncode: int | None = None
        self.why = ""

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
        (self._job.folder / _SIGNAL).write_text(str(int(number)))
        return True


def run_there(errand: dict[str, Any], num_cores: int) -> int:
    """Run to the end, on the machine that Slurm has picked."""
    trial = Trial()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # of Slurm itself: the time is over, or the job is cancelled
        signal.signal(number, lambda got, _: asked.append(got))
    answer = trial.start(errand, num_cores, None)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    job = Job(Path(errand["path"]))
    wish = job.path / FOLDER / _SIGNAL
    if answer["pid"] is None:  # somebody works on it
        job.note(exit_code=EXISTS)
        return EXISTS
    while (code := trial.poll()) is None:
        if wish.exists():
            asked.append(int(wish.read_text() or 0))
            wish.unlink(missing_ok=True)
        while asked:
            trial.send(asked.pop() or signal.SIGTERM)
        time.sleep(_POLL_S)
    job.note(exit_code=code)
    return code
