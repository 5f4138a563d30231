"""What stands beside a run: who runs it, how it is gone on with, and what it said."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from roboloop.launch.job import Job
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import Planned
from roboloop.run.rundir import RunDir


@pytest.fixture
def job(tiny):
    config = tiny()
    planned = Planned("v", 0, {}, config)
    return Job(planned.path, planned)


def longer(job: Job) -> Job:
    assert job.planned is not None
    return Job(job.path, job.planned._replace(config=replace(job.planned.config, steps=900)))


def test_a_run_is_started_by_its_config_and_gone_on_with_by_the_same_command(job):
    fresh = ["train", "--config", str(job.path / "launch" / "config.yaml"), "--resume"]
    assert job.command() == fresh
    RunDir.create(job.planned.config, []).close()
    assert job.command() == fresh


def test_a_finished_run_of_a_sweep_that_was_made_longer_goes_on(job):
    run = RunDir.create(job.planned.config, [])
    run.write_status("done", {"step": 400, "steps": 400})
    run.close()
    assert job.is_done()
    assert not longer(job).is_done()
    assert longer(job).command() == ["train", "--resume", str(job.path), "--steps", "900"]


def test_a_folder_made_by_the_launcher_is_not_in_the_way_of_a_new_run(job):
    job.hold()
    job.requeue()
    assert not job.is_held()
    assert job.take_requeue()
    assert not job.take_requeue()
    RunDir.create(job.planned.config, []).close()


def test_a_run_that_ended_badly_is_not_done_whatever_it_says(job):
    run = RunDir.create(job.planned.config, [])
    run.write_status("done", {"step": 400, "steps": 400})
    run.close()
    job.hold()
    job.note(exit_code=1)
    assert not job.is_done()
    job.note(exit_code=0)
    assert job.is_done()


def test_a_process_holds_its_lock_from_before_it_exists_until_it_is_gone(job, monkeypatch):
    monkeypatch.setattr("roboloop.launch.job.ROBOLOOP", (sys.executable, "-c", "input()"))
    monkeypatch.setattr(subprocess, "DEVNULL", subprocess.PIPE)
    process = job.start(Slot(0, tuple(os.sched_getaffinity(0)), 1), pytest.fail)
    assert process is not None
    assert job.is_live()
    assert job.pid == process.pid
    assert job.start(Slot(0, tuple(os.sched_getaffinity(0)), 1), pytest.fail) is None
    process.kill()
    process.communicate()
    assert not job.is_live()
    assert job.pid is None


def test_a_process_of_another_machine_is_never_signalled(job):
    run = RunDir.create(job.planned.config, [])
    status = run.status()
    (job.path / "status.json").write_text(json.dumps({**status, "host": "elsewhere", "boot_id": "another"}))
    assert job.is_live()
    assert job.pid is None
    run.close()


def test_last_words_are_the_last_line_that_is_not_a_command(job):
    assert job.last_words() == ""
    job.hold()
    job.log.write_text("$ roboloop train\nfirst\n  last  \n\n$ roboloop train\n")
    assert job.last_words() == "last"
