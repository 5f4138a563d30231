"""Stopping one run and going on with it: the same for a command and for a button."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.launch import plan
from roboloop.launch.job import Job


def stop_run(path: Path) -> str:
    """Let a run save and end, and say what happens; one of a sweep stays so until it is wanted again."""
    job = Job(path)
    if plan.sweep_of(path) is not None and path in {each.path for each in plan.jobs_at(path)} and not job.is_done():
        job.hold()
    return told(job, job.send(signal.SIGTERM))


def told(job: Job, ended: bool) -> str:
    """Return what becomes of a run that was asked to end."""
    held = "; held" if job.is_held() else ""
    if ended:
        return f"saves and ends{held}"
    host = job.host_elsewhere()
    if host and is_left_running(job):
        return f"runs on {host}; stop it there{held}"
    return f"{f'its launcher lets it save and end on {host}' if host else 'does not run'}{held}"


def is_left_running(job: Job) -> bool:
    """Say whether a run is on another machine, and nobody there hears that it is held."""
    sweep = plan.sweep_of(job.path)
    launched = sweep is not None and plan.launcher_of(sweep) is not None
    return bool(job.host_elsewhere()) and not (launched and job.is_held())


def end_launcher(sweep: Path, launcher: plan.LauncherAt) -> str:
    """Let a launcher and its runs end, and say what happens; one of another machine only there."""
    if not launcher.is_here:
        host = launcher.host or "a machine that its lock does not name"
        return f"its launcher is process {launcher.pid} on {host}; stop it there"
    try:
        command = plan.command_of(sweep)
    except DataError:
        command = "the command that it was started with"
    try:
        os.kill(launcher.pid, signal.SIGTERM)
    except OSError as error:  # it has just ended, or is another user's
        raise DataError(f"{sweep}: its launcher, process {launcher.pid}, cannot be told: {error.strerror}") from None
    return f"its launcher and all its runs save and end; go on with: {command}"


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
    if sweep is not None and plan.launcher_of(sweep) is not None:
        job.requeue()
        return "starts in its turn"
    process = job.spawn(["train", "--resume", str(path)], None, lambda _: None)
    if process is None:
        raise DataError(f"{path} runs already")
    return f"goes on as process {process.pid}"
