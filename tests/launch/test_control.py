"""Stopping what runs: a process id means something on one machine only."""

import json
import os
import socket

import pytest

from roboloop.core.errors import DataError
from roboloop.launch import plan
from roboloop.launch.commands import stop
from roboloop.launch.control import stop_run
from roboloop.launch.job import Job
from roboloop.launch.sweep import Planned
from roboloop.run.rundir import RunDir
from roboloop.track.read import boot_id


@pytest.fixture
def sent(monkeypatch):
    """Return the signals that would have been sent."""
    sent = []
    monkeypatch.setattr("roboloop.launch.control.os.kill", lambda pid, number: sent.append((pid, number.name)))
    return sent


@pytest.fixture
def job(tiny):
    config = tiny()
    run = RunDir.create(config, [])
    run.close()
    return Job(run.path, Planned("v", 0, {}, config))


def runs_on(job: Job, host: str) -> None:
    status = json.loads((job.path / "status.json").read_text())
    (job.path / "status.json").write_text(json.dumps({**status, "host": host, "boot_id": "another"}))


def in_a_sweep(job: Job) -> None:
    """Make the run's experiment a sweep of this one run."""
    sweep = job.path.parents[1]
    (sweep / ".sweep").mkdir()
    plan.write(sweep, [job.planned], ["sweep", "x"])


def test_a_launcher_says_where_it_is(job):
    sweep = job.path.parents[1]
    assert plan.launcher_of(sweep) is None
    with plan.launching(sweep):
        found = plan.launcher_of(sweep)
        assert found == (os.getpid(), socket.gethostname(), boot_id())
        assert found.is_here
    assert plan.launcher_of(sweep) is None


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        ("1 node7 another-boot", "its launcher is process 1 on node7; stop it there"),
        (f"1 {socket.gethostname()} another-boot", f"process 1 on {socket.gethostname()}; stop it there"),
        ("1", "its launcher is process 1 on a machine that its lock does not name; stop it there"),
    ],
)
def test_a_launcher_of_another_machine_or_boot_is_named_and_nobody_is_killed(job, sent, capsys, lock, said):
    in_a_sweep(job)
    sweep = job.path.parents[1]
    with plan.launching(sweep):
        (sweep / ".sweep" / "lock").write_text(lock)
        assert stop([str(sweep)]) == 2
    assert said in capsys.readouterr().out
    assert sent == []


def test_a_launcher_that_has_just_gone_is_one_line(job, monkeypatch):
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError(3, "No such process")

    in_a_sweep(job)
    monkeypatch.setattr("roboloop.launch.control.os.kill", gone)
    with plan.launching(job.path.parents[1]), pytest.raises(DataError, match="cannot be told: No such process"):
        stop([str(job.path.parents[1])])


def test_a_run_of_another_machine_is_stopped_there(job, capsys):
    runs_on(job, "node7")
    assert stop([str(job.path)]) == 2
    assert capsys.readouterr().out == f"{job}: runs on node7; stop it there\n"
    assert stop_run(job.path) == "runs on node7; stop it there"


def test_a_run_of_another_machine_is_ended_by_its_launcher_if_that_lives(job, capsys):
    in_a_sweep(job)
    runs_on(job, "node7")
    with plan.launching(job.path.parents[1]):
        assert stop([str(job.path)]) == 0
    assert capsys.readouterr().out == f"{job}: its launcher lets it save and end on node7; held\n"
    assert stop([str(job.path)]) == 2  # nobody hears the wish now
    assert capsys.readouterr().out == f"{job}: runs on node7; stop it there; held\n"


def test_a_run_that_does_not_run_is_no_mistake(job, capsys):
    run = RunDir.open(job.path, write=True)
    run.write_status("done", {"step": 400, "steps": 400})
    run.close()
    assert stop([str(job.path)]) == 0
    assert capsys.readouterr().out == f"{job}: does not run\n"
