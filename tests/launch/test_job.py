"""What stands beside a run: who runs it, how it is gone on with, and what it said."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from roboloop.core.config import override, resource_keys
from roboloop.core.flags import flag_names
from roboloop.core.vouched import vouched
from roboloop.launch.control import resume_run
from roboloop.launch.job import EXISTS, Job
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import Planned, nested
from roboloop.run.commands import given
from roboloop.run.rundir import RunDir
from roboloop.run.training import reopen
from roboloop.track.read import boot_id
from tests.own import is_alive


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
    config = override(job.planned.config, {"checkpoint": {"keep_last": 9}})  # which is of no use to it
    assert Job(job.path, job.planned._replace(config=config)).command()[-1] == "--resume"


def test_every_setting_that_a_resumed_run_may_be_given_anew_reaches_it(job):
    new = {
        "steps": 900, "trackers": ["tensorboard", "a:b"], "wandb.entity": "c", "observers": ["a", "b"],
        "observer_budget_s": 1e-7,
        "algo.processes": 3, "eval.stop_success": 0.5, "eval.stop_evaluations": 4,
        "sample.on": "ray", "sample.workers": 1, "sample.address": "ray://a:1", "checkpoint.every_episode": True,
        "checkpoint.keep_last": 9, "record.commit_s": 7.5,
    }  # fmt: skip
    for key in new:
        assert key in resource_keys(job.planned.config)
        assert key.replace("_", "-") in flag_names(job.planned.config)
    old = job.planned.config
    RunDir.create(old, []).close()
    for config in (override(old, nested(new)), old):  # there and back: what is on is turned off, what is a value none
        job.planned = job.planned._replace(config=config)
        train, resume, path, *flags = job.command()
        assert (train, resume, path) == ("train", "--resume", str(job.path))
        assert ("--trust" in flags) == bool(config.observers)  # the user typed them in the sweep
        run = reopen(job.path, given(vouched.take(flags)))
        run.close()
        assert run.config == RunDir.open(job.path).config == config
        assert job.command()[1] == "--config"


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
    for good in (0, EXISTS):  # who found another at work says nothing of the run
        job.note(exit_code=good)
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


def elsewhere(job: Job, **status) -> None:
    run = RunDir.create(job.planned.config, [])
    run.close()
    (job.path / "status.json").write_text(json.dumps({**run.status(), "host": "node7", "boot_id": "another", **status}))


def test_a_container_of_this_machine_counts_its_own_processes(job):
    elsewhere(job, boot_id=boot_id())
    assert job.pid is None
    assert job.host_elsewhere() == "node7"


def test_a_slurm_job_elsewhere_hears_a_signal_without_its_launcher(job):
    elsewhere(job)
    assert not job.send(signal.SIGTERM)  # nobody would look
    (job.folder / "slurm").mkdir(parents=True)
    assert job.send(signal.SIGTERM)
    assert (job.folder / "signal").read_text() == "15"
    (job.folder / "signal").unlink()
    (job.path / "status.json").unlink()
    assert not job.send(signal.SIGTERM)
    assert not (job.folder / "signal").exists()


def test_a_run_that_is_gone_on_with_by_hand_has_no_slot_any_more(job, monkeypatch):
    monkeypatch.setattr("roboloop.launch.job.ROBOLOOP", (sys.executable, "-c", "pass"))
    run = RunDir.create(job.planned.config, [])
    run.write_status("stopped", {"step": 1, "steps": 400})
    run.close()
    process = job.start(Slot(3, tuple(os.sched_getaffinity(0)), 1, "0"), pytest.fail)
    assert process is not None
    process.wait()
    assert (job.facts()["slot"], job.facts()["gpu"]) == (3, "0")
    said = resume_run(job.path)
    assert said == f"goes on as process {job.facts()['pid']}"
    assert [job.facts()[key] for key in ("slot", "cpus", "gpu")] == [None, None, None]
    assert job.log.read_text().endswith(f"$ roboloop train --resume {job.path}\n")
    pid = job.facts()["pid"]
    deadline_s = time.monotonic() + 60.0
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_last_words_are_the_last_line_that_is_not_a_command(job):
    assert job.last_words() == ""
    job.hold()
    job.log.write_text("$ roboloop train\nfirst\n  last  \n\n$ roboloop train\n")
    assert job.last_words() == "last"
