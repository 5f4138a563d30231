"""Evaluation on a robot: one lane, on the wall clock, over faults and over the death of whoever evaluates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import WorkerLost
from roboloop.core.types import Decision
from roboloop.envs import EnvConfig, make
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.run.build import eval_lanes
from roboloop.run.evaluate import TEST, Evaluator, Plan
from tests.envs.test_panda_rig import Standing
from tests.run.helpers import train

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
QUICK = {"hz": 20.0, "episode_s": 0.5}
STEPS = 10
PATIENCE_S = 120.0
ON_THE_CLOCK = ("--env.panda.driver", "process")


def evaluation(run: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "roboloop.cli", "eval", str(run), *args]


def evaluate(run: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(evaluation(run, *args), capture_output=True, text=True, check=False, timeout=PATIENCE_S)


class Forwards:
    """Pushes on, and does what a test wants done at some steps."""

    memory_size = 0

    def __init__(self, at: dict[int, Any] | None = None) -> None:
        self._at, self._step = at or {}, -1

    def act(self, obs: Any, memory: Any, explore: bool, rng: Any) -> Decision:
        self._step += 1
        self._at.get(self._step, lambda: None)()
        return Decision(np.tile(np.array([0.0, 1.0, 0.0], np.float32), (len(obs), 1)), memory)


class Robots:
    """Makes rigs, and remembers them."""

    def __init__(self, **keys: Any) -> None:
        self.made: list[Any] = []
        self._config = PandaEnvConfig(id="panda/reach", panda=PandaConfig(**{**QUICK, **keys}))

    def __call__(self, lane: int) -> Any:
        self.made.append(make(self._config, evaluation=True))
        return self.made[-1]

    @property
    def robot(self) -> Any:
        return self.made[0].world.robot


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def real_run(tiny: Any) -> Path:
    """A run whose checkpoints were trained on simulated time."""
    changes = {"steps": 60, "warmup_steps": 20, "eval": {"episodes": 0}, "checkpoint": {"every_steps": 20}}
    env = {"id": "panda/reach", "panda": QUICK, "max_episode_steps": STEPS, "eval_max_episode_steps": STEPS}
    return train(tiny(env=env, **changes))


def test_a_robot_is_one_lane() -> None:
    assert eval_lanes(PandaEnvConfig(id="panda/reach", panda=PandaConfig(driver="process")), 50) == 1
    assert eval_lanes(EnvConfig(id="panda/reach"), 50) == 10


def test_a_killed_evaluation_of_all_checkpoints_goes_on_with_the_episodes_it_lacks(real_run: Path) -> None:
    args = ("--checkpoint", "all", "--episodes", "2", *ON_THE_CLOCK)
    names = [f"test-step-{step:012d}-2x0-panda.driver-process.jsonl" for step in (20, 40, 60)]
    rows = real_run / "eval-panda.driver-process.jsonl"
    killed = subprocess.Popen(evaluation(real_run, *args), stdout=subprocess.DEVNULL)
    second, deadline_s = real_run / "eval" / names[1], time.monotonic() + PATIENCE_S
    while not (second.exists() and len(rows_of(second)) == 2) and time.monotonic() < deadline_s:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    before = second.read_text()
    assert [row["step"] for row in rows_of(rows)] == [20]
    done = evaluate(real_run, *args)
    assert done.returncode == 0, done.stderr
    assert second.read_text().startswith(before)
    for name in names:
        header, *episodes = rows_of(real_run / "eval" / name)
        assert header["protocol"]["hz"] == 20
        assert [row["episode"] for row in episodes] == [0, 1]
        assert all(row["length"] == STEPS for row in episodes)
    assert [row["step"] for row in rows_of(rows)] == [20, 40, 60]
    assert [line.split()[0] for line in done.stdout.splitlines()[-4:-1]] == ["20", "40", "60"]


def test_the_robot_holds_after_the_last_episode_and_when_a_policy_breaks() -> None:
    robots = Robots(driver="process", watchdog_s=60.0)
    evaluator = Evaluator(robots, frame_stack=1, lanes=1)
    try:
        for policy in (Forwards(), Forwards({5: sys.exit})):
            try:
                evaluator.run(policy, Plan(1, 0, TEST))
            except SystemExit:
                assert policy._step == 5
            time.sleep(0.5)
            reading = robots.robot.read()
            assert np.abs(reading.joint_vel_rad_s).max() < 0.01  # the target had run ahead by centimetres
            target_m = robots.made[0].world.lead_target.target_m
            assert np.linalg.norm(target_m - reading.ee_pos_m) < 0.01
            assert reading.holds == 0
    finally:
        evaluator.close()


def test_an_episode_with_a_fault_is_begun_again_and_does_not_count(tmp_path: Path) -> None:
    robots, told = Robots(driver="process"), []
    kill = {STEPS + 5: lambda: os.kill(robots.robot.pid, signal.SIGKILL)}
    evaluator = Evaluator(robots, frame_stack=1, lanes=1)
    try:
        summary = evaluator.run(Forwards(kill), Plan(3, 0, TEST), tmp_path / "r.jsonl", tell=told.append)
    finally:
        evaluator.close()
    assert [row["episode"] for row in rows_of(tmp_path / "r.jsonl")[1:]] == [0, 1, 2]
    assert (summary.episodes, summary.length) == (3, STEPS)
    assert len(told) == 1
    assert told[0].startswith("DriverDied: the driver (pid ")
    assert told[0].endswith("was killed by SIGKILL; begun again: episode 1")


def test_three_faults_in_a_row_end_it_with_their_name_and_finished_episodes_are_kept(tmp_path: Path) -> None:
    faults, told = (FaultPlan("controller", at_s=0.2, chance=0.3),), []
    evaluator = Evaluator(Robots(faults=faults), frame_stack=1, lanes=1)
    with pytest.raises(WorkerLost, match=r"3 times in a row, at last by ControllerStopped: .*told to stop") as lost:
        evaluator.run(Forwards(), Plan(20, 0, TEST), tmp_path / "r.jsonl", tell=told.append)
    evaluator.close()
    assert "\n" not in str(lost.value)
    kept = [row["episode"] for row in rows_of(tmp_path / "r.jsonl")[1:]]
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 20
    assert [line.rpartition(" ")[2] for line in told] == [str(len(kept))] * 2


def test_several_lanes_give_the_same_with_a_fault_among_them(tmp_path: Path) -> None:
    evaluator = Evaluator(Robots(), frame_stack=1, lanes=3)
    whole = evaluator.run(Forwards(), Plan(3, 0, TEST))
    stop = {4: lambda: evaluator._envs[1].world.robot.simulation.stop("controller", "pulled out")}
    told: list[str] = []
    assert evaluator.run(Forwards(stop), Plan(3, 0, TEST), tell=told.append) == whole
    assert told == ["ControllerStopped: the controller stopped: pulled out; begun again: episode 0, 1, 2"]
    evaluator.close()


def test_a_robot_that_fails_is_one_line_and_an_exit_code(
    real_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rig.yaml").write_text("env: {panda: {faults: [{kind: limit, at_s: 0.1}]}}")
    rig = Standing("panda/reach", "--port", 0, "--config", tmp_path / "rig.yaml")
    try:
        done = evaluate(
            real_run, "--checkpoint", "all", "--episodes", "2", *ON_THE_CLOCK, "--env.panda.address", rig.address
        )
    finally:
        rig.end()
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "LimitHit" in done.stderr
    assert not list(real_run.glob("eval*.jsonl"))


def test_a_run_is_evaluated_on_a_rig_that_stands_by_itself(
    real_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rig = Standing("panda/reach", "--port", 0)
    args = ("--episodes", "2", *ON_THE_CLOCK, "--env.panda.address", rig.address, "--checkpoint")
    try:
        done = evaluate(real_run, *args, "last")
        assert done.returncode == 0, done.stderr
        assert "over 2 episodes" in done.stdout
    finally:
        rig.end()
    gone = evaluate(real_run, *args, "20")
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert f"nobody answers on {rig.address}" in gone.stderr
    again = evaluate(real_run, *args, "last")
    assert again.stdout == done.stdout  # all its episodes are known: no robot is needed


def test_a_robot_has_no_film(real_run: Path) -> None:
    done = evaluate(real_run, "--video", "--episodes", "1", *ON_THE_CLOCK)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (real_run / "eval").exists()
