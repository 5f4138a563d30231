"""What the rig tells a robot, and what it makes of one that does not answer as it should."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from roboloop.envs.panda import make as panda_make
from roboloop.envs.panda import tasks
from roboloop.envs.panda.features import features
from roboloop.envs.panda.rig import RigEnv
from roboloop.envs.panda.robot import (
    Command,
    ControllerStopped,
    DriverDied,
    LimitHit,
    Reading,
)
from roboloop.envs.panda.suite import PandaEnvConfig

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")


class StillRobot:
    """Takes note of commands, and stands where it was put."""

    def __init__(self, task: tasks.PandaTask) -> None:
        self.features, self.task = features(task), task
        self.at = np.array([0.45, 0.0, 0.4])
        self.time_s, self.sent, self.holds, self.starts_that_fail = 0.0, list[Command](), 0, 0

    def read(self) -> Reading:
        home = np.array(tasks.HOME_RAD)
        return Reading(
            self.time_s,
            self.time_s,
            self.at,
            np.array(tasks.DOWN),
            home,
            home * 0,
            0.08,
            np.array([0.5, 0.1, 0.4, 0.0]),
        )

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def start(self) -> None:
        self.starts_that_fail -= 1
        if self.starts_that_fail >= 0:
            raise ControllerStopped("not yet")

    def hold(self) -> None:
        self.holds += 1

    def now_s(self) -> float:
        return self.time_s

    def advance(self, duration_s: float) -> None:
        self.time_s += duration_s

    def prepare(self, seed: int) -> None: ...
    def connect(self) -> None: ...
    def close(self) -> None: ...


def still(task: str = "reach") -> tuple[RigEnv, StillRobot]:
    cfg = PandaEnvConfig(id=f"panda/{task}")
    robot: Any = StillRobot(tasks.TABLE[task])
    return panda_make.make(task, cfg, False, robot), robot


def test_limits_and_force_cap_are_applied_before_a_command_is_sent() -> None:
    env, robot = still()
    env.reset(0)
    robot.sent.clear()
    rng = np.random.default_rng(0)
    for _ in range(50):
        env.step(rng.choice([-1.0, 1.0], 3))
    box = tasks.TABLE["reach"].limits["small"]
    assert len(robot.sent) == 50
    for command in robot.sent:
        assert command.ee_pos_m is not None
        assert (command.ee_pos_m >= box.low()).all()
        assert (command.ee_pos_m <= box.high()).all()
        assert np.linalg.norm(command.ee_pos_m - robot.at) <= 0.05 + 1e-9


def test_the_gripper_is_told_only_of_changes() -> None:
    env, robot = still("door")
    robot.at = np.array([0.45, 0.0, 0.25])
    env.reset(0)
    robot.sent.clear()
    for grip in (-1.0, 0.0, 0.3, 1.0, -0.1):
        env.step(np.array([0.0, 0.0, grip]))
    assert [command.gripper_open for command in robot.sent] == [None, None, False, None, True]


def test_an_action_that_is_no_number_holds_the_arm_and_is_refused() -> None:
    env, robot = still()
    env.reset(0)
    with pytest.raises(ValueError, match="finite numbers"):
        env.send(np.array([np.nan, 0, 0]))
    assert robot.holds == 1


def test_a_controller_that_will_not_start_is_tried_five_times() -> None:
    env, robot = still()
    robot.starts_that_fail = 4
    env.reset(0)
    robot.starts_that_fail = 5
    with pytest.raises(ControllerStopped):
        env.reset(0)


def test_an_arm_that_is_pushed_far_out_of_its_limits_is_a_fault() -> None:
    env, robot = still()
    env.reset(0)
    robot.at = np.array([0.45, 0.21, 0.4])
    with pytest.raises(LimitHit, match="outside its limits"):
        env.step(np.zeros(3))
    assert robot.holds == 1


def test_a_driver_that_says_nothing_is_taken_for_dead() -> None:
    env, robot = still()
    env.reset(0)
    before = robot.read()
    robot.read = lambda: before  # type: ignore[method-assign]
    env.step(np.zeros(3))
    env.step(np.zeros(3))
    with pytest.raises(DriverDied, match=r"nothing for 0\.60 s"):
        env.step(np.zeros(3))
