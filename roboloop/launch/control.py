"""Stopping one run and going on with it: the same for a command and for a button."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.launch import plan
from roboloop.launch.job import ROBOLOOP, Job, take


def stop_run(path: Path) -> str:
    """Let a run save and end, and say what happens; one of a sweep stays so until it is wanted again."""
    job = Job(path)
    if plan.sweep_of(path) is not None and path in {each.path for each in plan.jobs_at(path)} and not job.is_done():
        job.hold()
    return told(job, job.send(signal.SIGTERM))


def told(job: Job, ended: bool) -> str:
    """Return what becomes of a run that was asked to end."""
    return f"{'saves and ends' if ended else 'does not run'}{'; held' if job.is_held() else ''}"


def resume_run(path: Path) -> str:
    """Go on with a run in a process that outlives us; one whose sweep has a launcher starts in its turn."""
    job, sweep = Job(path), plan.sweep_of(path)
    info = job.info()
    if info is None:
        raise DataError(f"{path} has not begun, or cannot be read")
    if job.is_live():
        raise DataError(f"{path} runs already")
    if info.state == "done":
        raise DataError(f"{path} is done")
    if sweep is not None and job.is_held():
        job.requeue()
    if sweep is not None and plan.launcher_pid(sweep) is not None:
        job.requeue()
        return "starts in its turn"
    words = ["train", "--resume", str(path)]
    job.folder.mkdir(parents=True, exist_ok=True)
    with open(job.folder / "lock", "a") as lock, open(job.log, "ab") as log:
        if not take(lock):
            raise DataError(f"{path} runs already")
        job.note(pid=None, exit_code=None, why="", started_unix_s=time.time())
        log.write(f"$ roboloop {shlex.join(words)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [*ROBOLOOP, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock.fileno(),),  # as a launcher does: whether it lives is asked of the kernel
            env=dict(os.environ),
        )
    job.note(pid=process.pid)
    return f"goes on as process {process.pid}"
