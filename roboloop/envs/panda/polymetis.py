"""The real rig through polymetis. The calls are tested against a stand-in of ours; it has never been run on hardware.

What polymetis does not know comes from outside: ``camera`` returns the newest pose of the object (x, y, z, yaw) and the
monotonic time of its picture, and must not wait. Positions are those of polymetis' end-effector frame.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roboloop.core.errors import MissingExtra, RobotFault
from roboloop.core.types import Array
from roboloop.envs.panda.features import features
from roboloop.envs.panda.robot import Command, ConnectionCut, ControllerStopped, Reading, Robot
from roboloop.envs.panda.tasks import GAINS, OPEN_WIDTH_M, PandaTask

Camera = Callable[[], tuple[float, Array]]
POLL_S = 0.01
FIRST_S = 5.0
CLOSE_S = CALL_S = 5.0
"""Longest waits for a server that is left, and for one that is told something: gRPC's calls have no limit."""
MOVE_S = 60.0
"""The same for a joint move, which polymetis plans itself and ends itself."""


@dataclass(frozen=True)
class Address:
    """Where the servers of arm and gripper are, and how the gripper moves."""

    arm: str = "localhost"
    gripper: str = "localhost"
    gripper_speed_m_s: float = 0.1
    gripper_force_n: float = 20.0


class PolymetisPanda(Robot):
    """A ``Robot`` on polymetis' servers; a thread asks for states, so that reading never waits."""

    def __init__(self, task: PandaTask, camera: Camera, address: Address | None = None) -> None:
        self.features = features(task)
        self._camera, self._address = camera, address or Address()
        self._arm: Any = None
        self._gripper: Any = None
        self._thread: threading.Thread | None = None
        self._running = False
        self._newest: Reading | None = None
        self._gripper_open: bool | None = None
        self._fault: RobotFault | None = ConnectionCut("polymetis is not connected")

    def connect(self) -> None:
        """Reach both servers."""
        self._end_polling()
        try:
            polymetis = importlib.import_module("polymetis")
        except ModuleNotFoundError:
            raise MissingExtra("the real rig needs polymetis, which has its own installation guide") from None
        self._fault = self._newest = self._gripper_open = None
        address = self._address
        self._arm = self._call(
            "connect", lambda: polymetis.RobotInterface(ip_address=address.arm, enforce_version=False)
        )
        self._gripper = self._call("connect", lambda: polymetis.GripperInterface(ip_address=address.gripper))
        self._running = True
        self._thread = threading.Thread(target=self._poll, name="polymetis-readings", daemon=True)
        self._thread.start()
        deadline_s = time.monotonic() + FIRST_S
        while self._newest is None and self._fault is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        self.read()

    @contextlib.contextmanager
    def _line(self, doing: str) -> Any:
        """Turn whatever the line to a server raises into a fault: gRPC's errors have no class that we could name."""
        try:
            yield
        except RobotFault:
            raise
        except Exception as error:
            self._fault = ConnectionCut(f"polymetis, {doing}: {error}")
            raise self._fault from error

    def _call(self, doing: str, call: Callable[[], Any], is_move: bool = False) -> Any:
        """Return what a call returns; one that is not back in time is left to its thread, and the line is cut."""
        limit_s = MOVE_S if is_move else CALL_S
        results: list[Any] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name=f"polymetis-{doing}", daemon=True)
        thread.start()
        thread.join(limit_s)
        with self._line(doing):
            if errors:
                raise errors[0]
            if not results:
                raise TimeoutError(f"no answer in {limit_s:g} s")
        return results[0]

    def _poll(self) -> None:
        while self._running:
            try:
                with self._line("state"):
                    self._newest = self._ask()
            except RobotFault:
                return
            time.sleep(POLL_S)

    def _ask(self) -> Reading:
        asked_s = time.monotonic()  # the servers' clock is not ours: a state is at least as new as the question
        state = self._arm.get_robot_state()
        pos, quat_xyzw = self._arm.get_ee_pose()
        camera_time_s, object_pose = self._camera()
        is_running = bool(self._arm.is_running_policy())
        return Reading(
            arm_time_s=asked_s,
            camera_time_s=camera_time_s,
            ee_pos_m=np.array(pos, np.float64),
            ee_quat=np.roll(np.array(quat_xyzw, np.float64), 1),
            joint_pos_rad=np.array(state.joint_positions, np.float64),
            joint_vel_rad_s=np.array(state.joint_velocities, np.float64),
            gripper_width_m=float(self._gripper.get_state().width),
            object_pose=np.array(object_pose, np.float64),
            stopped="" if is_running else "controller",
            cause="" if is_running else "polymetis runs no policy",
        )

    def now_s(self) -> float:
        """Return this machine's monotonic time."""
        return time.monotonic()

    def read(self) -> Reading:
        """Return the newest state."""
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        if self._newest is None:
            raise ConnectionCut(f"polymetis sent no state in {FIRST_S:g} s")
        return self._newest

    def send(self, command: Command) -> None:
        """Pass a command on; only a joint move, which polymetis plans itself, is waited for."""
        self.read()
        self._call("command", lambda: self._pass_on(command), is_move=command.joint_pos_rad is not None)

    def _pass_on(self, command: Command) -> None:
        if command.gripper_open not in (None, self._gripper_open):
            self._gripper_open = command.gripper_open
            width_m = OPEN_WIDTH_M if command.gripper_open else 0.0
            speed, force = self._address.gripper_speed_m_s, self._address.gripper_force_n
            self._gripper.goto(width=width_m, speed=speed, force=force, blocking=False)
        if command.joint_pos_rad is not None:
            self._arm.move_to_joint_positions(_tensor(command.joint_pos_rad))
            self._impedance()
        elif command.ee_pos_m is not None:
            turned = None if command.ee_quat is None else _tensor(np.roll(command.ee_quat, -1))
            self._arm.update_desired_ee_pose(position=_tensor(command.ee_pos_m), orientation=turned)

    def hold(self) -> None:
        """Make the present pose the desired one."""
        self.read()
        self._call("hold", self._hold)

    def _hold(self) -> None:
        pos, quat_xyzw = self._arm.get_ee_pose()
        self._arm.update_desired_ee_pose(position=pos, orientation=quat_xyzw)

    def prepare(self, seed: int) -> None:
        """Start the controller for the scripted reset; the scene is a person's work."""
        self._call("prepare", self._prepare)

    def _prepare(self) -> None:
        if not self._arm.is_running_policy():
            self._impedance()

    def start(self) -> None:
        """Start the controller afresh."""
        self._call("start", self._start)

    def _start(self) -> None:
        if self._arm.is_running_policy():
            self._arm.terminate_current_policy()
        self._impedance()
        if not self._arm.is_running_policy():
            raise ControllerStopped("polymetis did not start the impedance controller")

    def _impedance(self) -> None:
        stiffness, damping = ([*[g[0]] * 3, *[g[1]] * 3] for g in (GAINS.kx, GAINS.kxd))
        self._arm.start_cartesian_impedance(Kx=_tensor(stiffness), Kxd=_tensor(damping))
        self._newest = self._ask()  # the last state may still say that nothing runs

    def advance(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)

    def _end_polling(self) -> None:
        self._running = False
        if self._thread is not None:
            self._thread.join(CLOSE_S)  # a call that never returns holds only its own thread
            self._thread = None

    def close(self) -> None:
        """End the policy, on which the arm brakes, and let go."""
        self._end_polling()
        if self._arm is not None:
            ending = threading.Thread(target=_end_policy, args=(self._arm,), name="polymetis-end", daemon=True)
            ending.start()
            ending.join(CLOSE_S)
        self._arm = self._gripper = None
        self._fault = ConnectionCut("polymetis is not connected")


def _end_policy(arm: Any) -> None:
    with contextlib.suppress(Exception):  # whatever a dead server raises
        arm.terminate_current_policy()


def _tensor(numbers: Any) -> Any:
    """Return what polymetis takes."""
    import torch

    return torch.as_tensor(np.asarray(numbers), dtype=torch.float32)
