"""Copies of runs, and clocks that somebody sets: who runs is told by locks, and waits by a clock that never jumps."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from roboloop.cli import main
from roboloop.core.processes import started_ticks
from roboloop.launch import launcher
from roboloop.launch.job import Job
from roboloop.launch.watch import look
from roboloop.run import checkpoint
from roboloop.track.read import boot_id, read_jsonl, read_run
from tests.launch.kit import Sweep, wait_until
from tests.run.helpers import train

DAY_S = 86400.0
HOLD = (
    "import fcntl, os, signal, sys, time\n"
    "lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
    "print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def live(tmp_path):
    """A run that a process works on: it holds its lock, as training does."""
    path = tmp_path / "runs" / "sac" / "reach" / "0"
    path.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path / "lock")], stdout=subprocess.PIPE)
    process.stdout.readline()

    def say(**changes):
        status = {"state": "running", "step": 5, "steps": 10, "pid": process.pid, "host": socket.gethostname()}
        status |= {"boot_id": boot_id(), "started_ticks": started_ticks(process.pid), "updated_unix_s": time.time()}
        (path / "status.json").write_text(json.dumps(status | changes))
        (path / "config.yaml").write_text("experiment: sac\n")

    say()
    yield path, process, say
    process.kill()
    process.wait()


@pytest.mark.parametrize("jump_s", [-30 * DAY_S, -120, 120, 30 * DAY_S])
def test_a_run_that_lives_is_running_however_the_clock_was_set(live, jump_s, monkeypatch):
    path, process, say = live
    say(updated_unix_s=time.time() + jump_s, started_unix_s=time.time() + jump_s)
    assert read_run(path).state == "running"
    assert look(path.parents[2])[0].state == "running"
    assert Job(path).pid == process.pid
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + jump_s)
    assert read_run(path).state == "running"


@pytest.mark.parametrize("jump_s", [-120, 120])
def test_stop_reaches_a_run_however_the_clock_was_set(live, jump_s, capsys):
    path, process, say = live
    say(updated_unix_s=time.time() + jump_s)
    assert main(["stop", str(path)]) == 0
    assert process.wait(10) == -15
    assert "saves and ends" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["copy", "hard links"])
def test_stop_of_a_copy_of_a_live_run_leaves_the_original_alone(live, how, capsys):
    path, process, _ = live
    copy = path.parents[2] / "backup" / "reach" / "0"
    shutil.copytree(path, copy, copy_function=os.link if how == "hard links" else shutil.copy2)
    assert read_run(copy).state == "lost"
    assert main(["stop", str(copy)]) == 0
    assert "does not run" in capsys.readouterr().out
    time.sleep(0.2)
    assert process.poll() is None
    assert read_run(path).state == "running"


@pytest.mark.parametrize("how", ["copy", "hard links"])
def test_stop_of_a_copy_of_a_live_sweep_leaves_its_launcher_alone(tmp_path, how):
    sweep = Sweep(tmp_path, "0", {0: "waits"}, axis="0.9")
    launcher = sweep.begin("--slots", 1)
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    copy = tmp_path / "backup" / "s"
    shutil.copytree(tmp_path / "runs" / "s", copy, copy_function=os.link if how == "hard links" else shutil.copy2)
    said = sweep.verb("stop", copy)
    assert "launcher" not in said
    assert "does not run" in said
    assert (launcher.poll(), sweep.state(0.9, 0)) == (None, "running")
    assert "its launcher and all its runs save and end" in sweep.verb("stop", tmp_path / "runs" / "s")
    launcher.communicate(timeout=60)


def test_a_copied_launch_folder_names_nobody(live, capsys):
    path, process, say = live
    say(state="stopped")
    (path / "launch").mkdir()
    (path / "launch" / "facts.json").write_text(json.dumps({"pid": process.pid, "slot": 0}))
    (path / "launch" / "lock").touch()
    assert Job(path).pid is None
    assert main(["stop", str(path)]) == 0
    assert process.poll() is None


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_launcher_knows_who_is_silent_however_the_clock_was_set(live, jump_s, monkeypatch):
    path, _, say = live
    active = launcher.Active(Job(path), None, None, began_s=100.0)
    assert launcher._heard_s(active, 110.0) == 110.0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert launcher._heard_s(active, 120.0) == 110.0  # it has said nothing since
    say(step=6)
    os.utime(path / "status.json", (real() + jump_s,) * 2)
    assert launcher._heard_s(active, 130.0) == 130.0
    assert launcher._heard_s(active, 999.0) == 130.0


def test_a_run_whose_clock_jumps_all_the_time_saves_and_logs_as_any_other(tiny, monkeypatch):
    real, jumps = time.time, itertools.cycle([0.0, DAY_S, -DAY_S, 400 * DAY_S])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    path = train(tiny(checkpoint={"every_steps": 100, "every_s": 300.0, "keep_last": 50}))
    assert checkpoint.steps(path / "checkpoints") == [100, 150, 200, 300, 400]  # 150: the first evaluation
    wall_s = [row["wall_s"] for row in read_jsonl(path / "timing.jsonl")]
    assert wall_s == sorted(wall_s)
    assert wall_s[-1] < 300
    assert read_run(path).state == "done"
