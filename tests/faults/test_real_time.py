"""A robot in real time, with a rig that stands by itself: whatever dies or stops, the arm holds and data is safe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from roboloop.data import journal
from roboloop.data.replay import FINAL
from roboloop.envs.panda.client import ProcessPanda
from roboloop.envs.panda.config import PandaConfig
from roboloop.run import checkpoint
from tests.faults.test_disk_full import can_mount, small_disk
from tests.rigs import PATIENCE_S, Standing

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
FLAGS = (
    "--env panda/reach --env.frame-stack 2 --env.panda.driver process --env.panda.hz 20 --env.panda.episode-s 1.5"
    " --sample.real-time process --steps 240 --warmup-steps 60 --log-every-steps 30 --replay.capacity 2000"
    " --algo.hidden 16 16 --algo.batch-size 16 --algo.processes 1 --update.per-step 1 --trackers"
    " --eval.episodes 0 --checkpoint.every-steps 0 --checkpoint.every-s 0 --checkpoint.every-episode"
).split()
EPISODE = 30
STILL_RAD_S = 0.05


class Trainer:
    """A training run on a rig, as a user starts it."""

    def __init__(self, rig: Standing, runs: Path, *more: str) -> None:
        self.path = runs / "run" / "reach" / "0"
        flags = ["--env.panda.address", rig.address, "--runs-dir", str(runs), "--experiment", "run"]
        command = [sys.executable, "-m", "roboloop.cli", "train", *FLAGS, *flags, *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_episodes(self, count: int) -> None:
        deadline_s = time.monotonic() + 6 * PATIENCE_S
        while len(self.saved()) == 0 or self.saved()[-1] < count * EPISODE:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def saved(self) -> list[int]:
        return checkpoint.steps(self.path / "checkpoints")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=6 * PATIENCE_S)
        return self.process.returncode, out, err


def look(rig: Standing) -> tuple[float, int]:
    """Return how fast the arm's joints are at most, and how often its driver had to hold."""
    robot = ProcessPanda("reach", PandaConfig(driver="process", address=rig.address))
    with robot:
        reading = robot.read()
        return float(np.abs(reading.joint_vel_rad_s).max()), reading.holds


def rows(path: Path) -> list[tuple[bytes, bool]]:
    """Return the rows of the newest checkpoint: observation and action as bytes, and whether it ends an episode."""
    point = next(checkpoint.newest_first(path / "checkpoints", print))
    found = []
    for columns, _ in journal.read(path / "journal", point.journal):
        for obs, action, flags in zip(columns["obs"], columns["action"], columns["flags"], strict=True):
            found.append((obs.tobytes() + action.tobytes(), bool(flags == FINAL)))
    return found


def test_a_trainer_killed_in_mid_episode_leaves_an_arm_that_holds_and_loses_no_whole_episode(standing, tmp_path):
    rig = standing()
    trainer = Trainer(rig, tmp_path / "runs")
    trainer.wait_for_episodes(3)
    before = rows(trainer.path)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(trainer.saved()) and trainer.saved()[-1] == 3 * EPISODE and time.monotonic() < deadline_s:
        time.sleep(0.02)  # the fourth episode has been saved: we are in the reset before the fifth, or in it
    time.sleep(2.5)
    os.kill(trainer.process.pid, signal.SIGKILL)
    trainer.end()
    time.sleep(0.5)
    speed_rad_s, _ = look(rig)
    assert speed_rad_s < STILL_RAD_S
    kept = rows(trainer.path)
    assert kept[: len(before)] == before
    command = [sys.executable, "-m", "roboloop.cli", "train", "--resume", str(trainer.path)]
    command += ["--env.panda.address", rig.address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=6 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    after = rows(trainer.path)
    assert after[: len(kept)] == kept  # nothing that was saved is lost
    steps = [row for row, is_last in after if not is_last]
    assert len(set(steps)) == len(steps) >= 240  # and nothing is there twice
    status = json.loads((trainer.path / "status.json").read_text())
    assert (status["state"], status["step"]) == ("done", len(steps))


def test_a_learner_that_stands_still_lets_the_arm_hold_until_it_goes_on(standing, tmp_path):
    rig = standing()
    trainer = Trainer(rig, tmp_path / "runs")
    trainer.wait_for_episodes(2)
    time.sleep(2.0)
    os.kill(trainer.process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(trainer.process.pid, signal.SIGCONT)
    code, out, err = trainer.end()
    assert code == 0, err
    assert "the learner has said nothing for" in out + err
    steps = [row for row, is_last in rows(trainer.path) if not is_last]
    assert len(set(steps)) == len(steps)


def test_a_rig_that_is_killed_is_named_and_the_run_ends_with_its_data(standing, tmp_path):
    rig = standing()
    trainer = Trainer(rig, tmp_path / "runs", "--sample.restarts", "1")
    trainer.wait_for_episodes(2)
    rig.process.kill()
    code, _, err = trainer.end()
    assert code == 7
    assert "DriverDied" in err
    assert len(rows(trainer.path)) >= 2 * EPISODE


def test_a_disk_that_fills_up_ends_the_run_and_the_arm_holds(standing, tmp_path):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("mounting a small disk needs root")
    rig = standing()
    with small_disk(tmp_path / "disk", 4):
        trainer = Trainer(rig, tmp_path / "disk")
        trainer.wait_for_episodes(2)
        kept = rows(trainer.path)
        free = os.statvfs(tmp_path / "disk")
        (tmp_path / "disk" / "ballast").write_bytes(bytes(free.f_bavail * free.f_bsize))
        code, _, err = trainer.end()
        assert code == 5, err
        assert "disk full" in err
        speed_rad_s, _ = look(rig)
        assert speed_rad_s < STILL_RAD_S
        assert rows(trainer.path)[: len(kept)] == kept


def test_ctrl_c_brings_the_arm_to_rest_and_saves_the_steps_on_their_way(standing, tmp_path):
    rig = standing()
    trainer = Trainer(rig, tmp_path / "runs")
    trainer.wait_for_episodes(2)
    time.sleep(2.5)
    trainer.process.send_signal(signal.SIGINT)
    code, _, err = trainer.end()
    assert code == 4, err
    steps = [row for row, is_last in rows(trainer.path) if not is_last]
    assert len(steps) % EPISODE or len(steps) > 2 * EPISODE  # the running episode's steps are there too
    assert len(set(steps)) == len(steps)
    speed_rad_s, _ = look(rig)
    assert speed_rad_s < STILL_RAD_S
