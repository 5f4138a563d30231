"""Whatever happens to the recorder, its disk or its process, training goes on and the dataset stays sound."""

import errno
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from roboloop.core.child import Child
from roboloop.core.errors import WorkerLost
from roboloop.core.state import equal
from roboloop.core.vouched import vouched
from roboloop.data.dataset import Dataset
from roboloop.data.recorder_process import StopRecording
from roboloop.run.rundir import RunDir
from tests.data.recording import Counting, assert_sound, names, recorder
from tests.faults.kill_and_resume import FLAGS
from tests.faults.test_disk_full import can_mount, small_disk
from tests.own import own_s
from tests.run.helpers import make_runner, remains
from tests.run.helpers import train as train_plain

STOP_S = float(os.environ.get("RECORDER_STOP_S", "2"))
"""How long the writer is held; the full test is 60."""
NOISE = {
    "env": {
        "id": "gym/tests.faults.noise_env:Noise-v0",
        "num_envs": 4,
        "max_episode_steps": 20,
        "eval_max_episode_steps": 20,
    },
    "algo": {"name": "ppo", "hidden": [8], "rollout_steps": 8, "minibatches": 1, "epochs": 1, "processes": 1},
    "eval": {"every_steps": 0, "episodes": 1},
    "checkpoint": {"every_steps": 0, "every_s": 0},
}


def train(config, beside=None, before=None):
    """Train a new run while ``beside(runner)`` runs in a thread; return its path and what it said."""
    run = RunDir.create(config, [])
    if before is not None:
        before(run)
    runner = make_runner(run)
    thread = threading.Thread(target=beside or (lambda runner: None), args=(runner,), daemon=True)
    thread.start()
    try:
        assert runner.train() in ("done", "stopped")
    finally:
        runner.close()
        run.close()
    thread.join(10)
    return run.path, runner.progress._stream.getvalue(), runner


def du(directory):
    total = 0
    for root, _, files in os.walk(directory):
        for name in (root, *(os.path.join(root, file) for file in files)):
            with suppress(FileNotFoundError):
                total += max(os.stat(name).st_blocks * 512, os.stat(name).st_size)
    return total


@pytest.mark.parametrize("keep", ["all", "last", "reservoir", "top_return"])
def test_a_budget_is_never_exceeded_and_training_completes(tiny, keep):
    most = [0]

    def watch(runner):
        while runner.clock.step < runner.cfg.steps:
            most[0] = max(most[0], du(runner.run.dataset))
            time.sleep(0.001)

    path, said, _ = train(tiny(**NOISE, steps=16_000, record={"keep": keep, "budget_mb": 2, "min_free_mb": 0}), watch)
    assert 1_000_000 < most[0] <= 2_000_000
    assert du(path / "dataset") <= 2_000_000
    dataset = Dataset.open(path / "dataset")
    assert len(dataset) > 10
    assert (dataset.table["length"] == 20).all()
    if keep == "all":
        assert said.count("recording stopped") == 1
        assert "record.budget_mb is 2" in said
    else:
        assert "recording stopped" not in said
        assert sum(dataset.entry(row).size for row in range(len(dataset))) > 1_000_000  # the budget is for the living
    if keep == "last":
        assert dataset.table["step"].min() > 12_000
    if keep == "reservoir":
        assert dataset.table["step"].min() < 5_000 < 11_000 < dataset.table["step"].max()


def wait_for_steps(runner, steps):
    until = runner.clock.step + steps
    while runner.clock.step < until:
        time.sleep(0.002)


def test_a_writer_that_is_held_costs_training_nothing_and_goes_on_afterwards(tiny):
    marks = {}

    def hold(runner):
        wait_for_steps(runner, 500)
        pid = runner.recorder._child.pid
        marks["free"] = rate(runner, STOP_S)
        os.kill(pid, signal.SIGSTOP)
        marks["held"] = rate(runner, STOP_S)
        os.kill(pid, signal.SIGCONT)
        marks["step"] = runner.clock.step
        deadline_s = time.monotonic() + 20
        while runner.recorder._ring.use > 0.1 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        wait_for_steps(runner, 2_000)
        runner._stop.number = signal.SIGTERM

    def rate(runner, seconds):
        begin, at_s = runner.clock.step, own_s(os.getpid())  # training is the main thread
        time.sleep(seconds)
        return (runner.clock.step - begin) / (own_s(os.getpid()) - at_s)

    record = {"keep": "last", "budget_mb": 20, "ring_mb": 1, "min_free_mb": 0}
    path, said, runner = train(tiny(**NOISE, steps=100_000_000, record=record), hold)
    assert marks["held"] > 0.5 * marks["free"]  # much slower would be waiting; less is the noise of a shared machine
    dropped = runner.recorder.timing()
    assert dropped["record/dropped_backpressure"] + dropped["record/dropped_throttled"] > 0
    assert said.count("the recorder is behind") == 1
    table = Dataset.open(path / "dataset").table
    assert (table["step"] > marks["step"]).sum() > 10
    assert (table["length"] == 20).all()
    assert "episodes were dropped" in said


def test_a_writer_that_is_killed_is_replaced_so_often_and_then_left_alone(tiny):
    def kill(runner):
        for kept in (20, 40):  # the second writer must have recorded too before it is killed
            deadline_s = time.monotonic() + 60
            while runner.recorder.timing()["record/recorded_episodes"] < kept and time.monotonic() < deadline_s:
                time.sleep(0.01)
            child = runner.recorder._child
            os.kill(child.pid, signal.SIGKILL)
            while runner.recorder._child is child and runner.recorder._is_writing:
                time.sleep(0.005)
        runner._stop.number = signal.SIGTERM

    record = {"keep": "last", "budget_mb": 20, "restarts": 1, "commit_s": 0.2, "min_free_mb": 0}
    path, said, _ = train(tiny(**NOISE, steps=100_000_000, record=record), kill)
    assert "was killed by SIGKILL; restarted (1)" in said
    assert said.count("recording stopped") == 1
    assert "more often than record.restarts allows; training goes on" in said
    dataset = Dataset.open(path / "dataset")
    assert len(dataset) >= 40
    assert len(set(zip(dataset.table["env"].tolist(), dataset.table["episode"].tolist(), strict=True))) == len(dataset)


def test_a_writer_that_dies_while_it_starts_is_named_and_replaced(tiny, monkeypatch):
    started = []

    class Doomed(Child):
        def __init__(self, *args):
            super().__init__(*args)
            started.append(self.pid)
            if len(started) == 1:
                os.kill(self.pid, signal.SIGKILL)
                self._process.wait()  # so that not even its job can be sent

    monkeypatch.setattr("roboloop.data.recorder.Child", Doomed)
    path, said, _ = train(tiny(**NOISE, steps=800, record={"keep": "all", "min_free_mb": 0}))
    assert f"the recorder (pid {started[0]}) was killed by SIGKILL; restarted (1)" in said
    assert len(Dataset.open(path / "dataset"))


def test_a_writer_that_always_dies_while_it_starts_is_one_line(tiny, monkeypatch):
    monkeypatch.setattr(
        "roboloop.data.recorder.Child", lambda name, target, fds: Child(name, "tests.faults.noise_env:missing", fds)
    )
    with pytest.raises(WorkerLost) as lost:
        train(tiny(**NOISE, steps=800, record={"keep": "all", "min_free_mb": 0, "restarts": 1}))
    assert re.fullmatch(
        r"the recorder \(pid \d+\) ended with exit code 1: AttributeError: .*, more often than record.restarts allows",
        str(lost.value),
    )


def test_a_writer_that_hangs_is_named_and_replaced(tiny, monkeypatch):
    monkeypatch.setattr("roboloop.data.recorder.HANG_S", 1.0)

    def hold(runner):
        wait_for_steps(runner, 100)
        child = runner.recorder._child
        os.kill(child.pid, signal.SIGSTOP)
        while runner.recorder._child is child:
            time.sleep(0.005)
        deadline_s = time.monotonic() + 60
        while not runner.recorder.timing()["record/recorded_episodes"] and time.monotonic() < deadline_s:
            time.sleep(0.01)
        runner._stop.number = signal.SIGTERM

    record = {"keep": "last", "budget_mb": 20, "commit_s": 0.2, "min_free_mb": 0, "restarts": 100}
    path, said, _ = train(tiny(**NOISE, steps=100_000_000, record=record), hold)
    assert "hung for 1 s: it is stopped (SIGSTOP, or a debugger); restarted (1)" in said
    assert len(Dataset.open(path / "dataset"))


def test_a_killed_writer_changes_no_bit_of_training(tiny, request):
    typed = vouched.during([NOISE["env"]["id"]])  # as whoever typed it does
    typed.__enter__()
    request.addfinalizer(lambda: typed.__exit__(None, None, None))

    def kill(runner):
        wait_for_steps(runner, 200)
        os.kill(runner.recorder._child.pid, signal.SIGKILL)

    plain = remains(train_plain(tiny(**NOISE, experiment="plain", steps=3_000)))["state"]
    recorded, *_ = train(tiny(**NOISE, steps=3_000, record={"keep": "all", "min_free_mb": 0}), kill)
    state = remains(recorded)["state"]
    assert equal(plain["algo"], state["algo"])
    assert equal(plain["sampler"], state["sampler"])


def test_a_full_disk_ends_recording_with_one_line_and_training_completes(tiny, tmp_path):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("mounting a small disk needs root")
    mounts = []

    def mount(run):
        disk = small_disk(run.dataset, 1)
        disk.__enter__()
        mounts.append(disk)

    try:
        path, said, _ = train(
            tiny(**NOISE, steps=4_000, record={"keep": "all", "budget_mb": 100, "min_free_mb": 0}), before=mount
        )
        assert said.count("recording stopped") == 1
        assert "disk full" in said or "are free" in said
        dataset = Dataset.open(path / "dataset")
        found = len(dataset)
        dataset.close()
        assert found > 20  # nearly all that a megabyte can hold: what was written before the disk was full is not lost
    finally:
        for disk in mounts:
            disk.__exit__(None, None, None)


def test_a_disk_that_is_nearly_full_is_left_alone(tiny):
    path, said, _ = train(tiny(**NOISE, steps=1_000, record={"keep": "all", "min_free_mb": 10**9}))
    assert said.count("recording stopped") == 1
    assert "record.min_free_mb is 1000000000" in said
    assert len(Dataset.open(path / "dataset")) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_every_fault_of_the_disk_ends_recording_and_keeps_what_was_committed(tmp_path, monkeypatch, number):
    envs = Counting(2, lambda env, episode: 10)
    made = recorder(tmp_path, envs, 10, commit_s=1e-9)
    for _ in range(5):
        made.offer(envs.collect(10), envs.steps)
    made.drain()
    real, calls = os.write, itertools.count()

    def failing(fd, data):
        if next(calls) >= 3:
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    monkeypatch.setattr(os, "write", failing)
    for _ in range(5):
        made.offer(envs.collect(10), envs.steps)
    with pytest.raises(StopRecording, match="disk full" if number == errno.ENOSPC else "disk failed"):
        made.drain()
    monkeypatch.undo()
    dataset = Dataset.open(tmp_path / "dataset")
    assert len(dataset) >= 10
    assert_sound(dataset)


def test_a_run_that_is_killed_at_random_moments_has_no_step_twice(tmp_path):
    path = tmp_path / "killed" / "Pendulum-v1" / "0"
    flags = [*FLAGS, "--steps", "1500", "--runs-dir", str(tmp_path), "--experiment", "killed"]
    flags += ["--record.keep", "all", "--record.min-free-mb", "0", "--record.commit-s", "0.1"]
    draw = random.Random(2)
    command = [sys.executable, "-m", "roboloop.cli", "train"]
    for _ in range(3):
        process = subprocess.Popen([*command, *(["--resume", str(path)] if path.exists() else flags)])
        while process.poll() is None and not (path / "dataset" / "index.log").exists():
            time.sleep(0.01)
        time.sleep(draw.uniform(0.5, 3.0))
        process.kill()
        process.wait()
    done = subprocess.run([*command, "--resume", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    dataset = Dataset.open(path / "dataset")
    found = names(dataset)
    assert len(set(found)) == len(found) > 10
    for row in range(len(dataset)):
        assert len(dataset.episode(row).reward) == 40
