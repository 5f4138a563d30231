"""The adapter to polymetis speaks its calls, against a stand-in: no hardware was near."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from roboloop.core.errors import MissingExtra
from roboloop.core.types import Array
from roboloop.envs.panda import make as panda_make
from roboloop.envs.panda import tasks
from roboloop.envs.panda.polymetis import Address, PolymetisPanda
from roboloop.envs.panda.robot import Command, ConnectionCut, ControllerStopped
from roboloop.envs.panda.suite import PandaEnvConfig


class RobotInterface:
    """Stands in for polymetis' arm: goes at once where it is told."""

    made: ClassVar[list[RobotInterface]] = []

    def __init__(self, ip_address: str, enforce_version: bool) -> None:
        self.address, self.running, self.broken, self.starts_fail = ip_address, False, False, 0
        self.pos, self.quat = torch.tensor([0.44, 0.0, 0.306]), torch.tensor([1.0, 0.0, 0.0, 0.0])
        self.joints = torch.tensor(tasks.HOME_RAD)
        self.gains: Any = None
        self.calls: list[str] = []
        self.made.append(self)

    def _note(self, call: str) -> None:
        if self.broken:
            raise RuntimeError("failed to connect to all addresses")  # as gRPC says it
        self.calls.append(call)

    def get_robot_state(self) -> Any:
        self._note("get_robot_state")
        return SimpleNamespace(joint_positions=self.joints.tolist(), joint_velocities=[0.0] * 7)

    def get_ee_pose(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pos, self.quat

    def start_cartesian_impedance(self, Kx: torch.Tensor, Kxd: torch.Tensor) -> None:
        self._note("start_cartesian_impedance")
        self.gains = (Kx, Kxd)
        self.starts_fail -= 1
        self.running = self.starts_fail < 0

    def update_desired_ee_pose(self, position: torch.Tensor, orientation: torch.Tensor | None) -> None:
        self._note("update_desired_ee_pose")
        assert self.running
        assert position.dtype == torch.float32
        self.pos = position
        self.quat = self.quat if orientation is None else orientation

    def move_to_joint_positions(self, positions: torch.Tensor) -> None:
        self._note("move_to_joint_positions")
        self.joints, self.running = positions, False  # its own policy ends with the move

    def is_running_policy(self) -> bool:
        return self.running

    def terminate_current_policy(self) -> None:
        self._note("terminate_current_policy")
        self.running = False


class GripperInterface:
    """Stands in for polymetis' gripper."""

    made: ClassVar[list[GripperInterface]] = []

    def __init__(self, ip_address: str) -> None:
        self.width, self.goals = 0.08, list[float]()
        self.made.append(self)

    def get_state(self) -> Any:
        return SimpleNamespace(width=self.width)

    def goto(self, width: float, speed: float, force: float, blocking: bool) -> None:
        assert not blocking
        assert speed > 0
        assert force > 0
        self.goals.append(width)
        self.width = width


def camera() -> tuple[float, Array]:
    return time.monotonic() - 0.05, np.array([0.5, 0.05, 0.4, 0.0])


@pytest.fixture
def polymetis(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("polymetis")
    module.RobotInterface, module.GripperInterface = RobotInterface, GripperInterface
    RobotInterface.made.clear()
    GripperInterface.made.clear()
    monkeypatch.setitem(sys.modules, "polymetis", module)


@pytest.fixture
def robot(polymetis: None) -> Any:
    with PolymetisPanda(tasks.TABLE["door"], camera, Address(arm="nuc")) as made:
        yield made


def test_the_controller_is_started_with_the_rigs_gains(robot: PolymetisPanda) -> None:
    robot.start()
    arm = RobotInterface.made[0]
    assert arm.address == "nuc"
    assert arm.gains[0].tolist() == [250, 250, 250, 15, 15, 15]
    assert arm.gains[1].tolist() == [37, 37, 37, 2, 2, 2]
    assert robot.read().stopped == ""


def test_quaternions_are_turned_round_both_ways(robot: PolymetisPanda) -> None:
    robot.start()
    robot.send(Command(ee_pos_m=np.array([0.4, 0.1, 0.3]), ee_quat=np.array([0.1, 0.7, 0.5, 0.5])))
    arm = RobotInterface.made[0]
    assert arm.quat.tolist() == pytest.approx([0.7, 0.5, 0.5, 0.1])
    time.sleep(0.1)
    assert robot.read().ee_quat == pytest.approx([0.1, 0.7, 0.5, 0.5])
    assert robot.read().ee_pos_m == pytest.approx([0.4, 0.1, 0.3])


def test_the_gripper_is_told_only_of_changes(robot: PolymetisPanda) -> None:
    robot.start()
    for is_open in (True, True, None, False, False, True):
        robot.send(Command(gripper_open=is_open))
    assert GripperInterface.made[0].goals == [0.08, 0.0, 0.08]


def test_a_joint_move_is_followed_by_the_impedance_controller(robot: PolymetisPanda) -> None:
    robot.start()
    arm = RobotInterface.made[0]
    robot.send(Command(joint_pos_rad=np.array(tasks.HOME_RAD)))
    told = [call for call in arm.calls if call != "get_robot_state"]
    assert told[-2:] == ["move_to_joint_positions", "start_cartesian_impedance"]
    assert robot.read().stopped == ""


def test_a_policy_that_has_ended_is_a_stopped_controller(robot: PolymetisPanda) -> None:
    robot.start()
    RobotInterface.made[0].running = False
    time.sleep(0.1)
    assert (robot.read().stopped, robot.read().cause) == ("controller", "polymetis runs no policy")


def test_a_lost_server_is_a_cut_line_and_can_be_reached_again(robot: PolymetisPanda) -> None:
    robot.start()
    RobotInterface.made[0].broken = True
    time.sleep(0.1)
    with pytest.raises(ConnectionCut, match="failed to connect"):
        robot.read()
    with pytest.raises(ConnectionCut):
        robot.send(Command())
    robot.connect()
    assert np.isfinite(robot.read().ee_pos_m).all()


def test_a_controller_that_does_not_start_says_so(robot: PolymetisPanda) -> None:
    RobotInterface.made[0].starts_fail = 1
    with pytest.raises(ControllerStopped, match="did not start"):
        robot.start()


def test_closing_ends_the_policy(polymetis: None) -> None:
    with PolymetisPanda(tasks.TABLE["door"], camera) as robot:
        robot.start()
    assert not RobotInterface.made[0].running
    with pytest.raises(ConnectionCut, match="not connected"):
        robot.read()


def test_closing_does_not_wait_for_a_server_that_hangs(polymetis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roboloop.envs.panda.polymetis.CLOSE_S", 0.2)
    released = threading.Event()
    with PolymetisPanda(tasks.TABLE["door"], camera) as robot:
        robot.start()
        monkeypatch.setattr(RobotInterface, "get_robot_state", lambda self: released.wait())
        monkeypatch.setattr(RobotInterface, "terminate_current_policy", lambda self: released.wait())
        time.sleep(0.1)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5.0
    released.set()


@pytest.mark.parametrize("verb", ["hold", "send"])
def test_a_server_that_hangs_in_a_call_is_a_cut_line(
    robot: PolymetisPanda, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("roboloop.envs.panda.polymetis.CALL_S", 0.2)
    released = threading.Event()
    robot.start()
    monkeypatch.setattr(RobotInterface, "update_desired_ee_pose", lambda self, **pose: released.wait())
    with pytest.raises(ConnectionCut, match=r"no answer in 0\.2 s"):
        robot.hold() if verb == "hold" else robot.send(Command(ee_pos_m=np.array([0.4, 0.0, 0.3])))
    with pytest.raises(ConnectionCut):
        robot.read()
    released.set()


def test_an_episode_can_be_played_on_it(polymetis: None) -> None:
    robot = PolymetisPanda(tasks.TABLE["reach"], camera)
    env = panda_make.make("reach", PandaEnvConfig(id="panda/reach"), False, robot)
    obs = env.begin(0)
    for _ in range(2):
        env.send(np.array([1.0, 0.0, 0.0]))
        time.sleep(0.1)
        out = env.observe()
    env.close()
    assert out.obs[0] - obs[0] == pytest.approx(2 * 0.04 / np.sqrt(3), abs=1e-3)
    assert out.obs[3:] == pytest.approx([0.5, 0.05, 0.4])


def test_without_polymetis_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polymetis", None)
    with pytest.raises(MissingExtra, match="needs polymetis"):
        PolymetisPanda(tasks.TABLE["reach"], camera).connect()
