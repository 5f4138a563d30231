"""The scripted reset, through the controller as on the rig: on simulated time it is over in milliseconds."""

from __future__ import annotations

import math

import numpy as np

from roboloop.core.errors import RobotFault
from roboloop.core.types import Array
from roboloop.envs.panda.health import check
from roboloop.envs.panda.robot import Command, Reading, Robot
from roboloop.envs.panda.tasks import CLEAR_Z_M, DOWN, HOME_RAD, OPEN_WIDTH_M, REOPENED_M, PandaTask

PERIOD_S = 0.05
SPEED_M_S = 0.25
ARRIVED_M, ARRIVED_RAD = 0.005, 0.02
GRIPPER_PATIENCE_S, MOVE_PATIENCE_S, JOINT_PATIENCE_S, CLOSE_PATIENCE_S = 5.0, 3.0, 10.0, 8.0
WIDTH_SLACK_M = 0.005
BEHIND_M, TOUCHING_M, PUSH_M = 0.07, 0.02, 0.03
"""Where the hand goes down behind a handle; its distance when it touches it; how far ahead of that it pushes."""
CLOSED_M = 0.008
ATTEMPTS = 3


class Reset:
    """Brings a robot and its scene from wherever they are to an episode's first pose."""

    def __init__(self, robot: Robot, task: PandaTask, camera_stale_s: float) -> None:
        self._robot, self._task, self._camera_stale_s = robot, task, camera_stale_s

    def run(self, start_m: Array) -> None:
        """Open the gripper, close what is open, go to the home joints, then to the first pose."""
        self._grip(True)
        self._close()
        self._home()
        if not self._task.gripper_open:
            self._grip(False)
        self._go(start_m)

    def _read(self) -> Reading:
        reading = self._robot.read()
        check(reading, self._robot.now_s(), self._camera_stale_s)
        return reading

    def _send(self, command: Command) -> None:
        self._robot.send(command)
        self._robot.advance(PERIOD_S)

    def _grip(self, is_open: bool) -> None:
        wanted_m = OPEN_WIDTH_M if is_open else 0.0
        deadline_s = self._robot.now_s() + GRIPPER_PATIENCE_S
        while abs(self._read().gripper_width_m - wanted_m) > WIDTH_SLACK_M:
            if self._robot.now_s() > deadline_s:
                raise RobotFault(f"the gripper did not {'open' if is_open else 'close'} in {GRIPPER_PATIENCE_S:g} s")
            self._send(Command(gripper_open=is_open))

    def _home(self) -> None:
        deadline_s, home = self._robot.now_s() + JOINT_PATIENCE_S, np.array(HOME_RAD)
        if np.abs(self._read().joint_pos_rad - home).max() > ARRIVED_RAD:
            self._send(Command(joint_pos_rad=home))
        while np.abs(self._read().joint_pos_rad - home).max() > ARRIVED_RAD:
            if self._robot.now_s() > deadline_s:
                raise RobotFault(f"the arm did not reach its home joints in {JOINT_PATIENCE_S:g} s")
            self._send(Command())

    def _go(self, pos_m: Array) -> None:
        """Lead the hand along a line, and wait for it to come."""
        target = self._read().ee_pos_m.copy()
        while True:
            way = pos_m - target
            left_m = float(np.linalg.norm(way))
            target = pos_m if left_m <= SPEED_M_S * PERIOD_S else target + way * (SPEED_M_S * PERIOD_S / left_m)
            self._send(Command(ee_pos_m=target, ee_quat=np.array(DOWN)))
            if left_m <= SPEED_M_S * PERIOD_S:
                break
        deadline_s = self._robot.now_s() + MOVE_PATIENCE_S
        while np.linalg.norm(self._read().ee_pos_m - pos_m) > ARRIVED_M and self._robot.now_s() < deadline_s:
            self._send(Command())

    def _close(self) -> None:
        """Push a drawer or door shut from behind its handle."""
        task = self._task
        for _ in range(ATTEMPTS):
            if not task.closes or opened_m(task, self._read().object_pose) <= REOPENED_M:
                return
            handle, into = self._handle()
            self._go(_at(self._read().ee_pos_m, CLEAR_Z_M))
            self._go(_at(handle - BEHIND_M * into, CLEAR_Z_M))
            self._grip(False)
            self._go(handle - BEHIND_M * into)
            deadline_s = self._robot.now_s() + CLOSE_PATIENCE_S
            while opened_m(task, self._read().object_pose) > CLOSED_M and self._robot.now_s() < deadline_s:
                handle, into = self._handle()
                self._send(Command(ee_pos_m=handle + (PUSH_M - TOUCHING_M) * into, ee_quat=np.array(DOWN)))
            self._go(_at(self._read().ee_pos_m, CLEAR_Z_M))
            self._grip(True)
        raise RobotFault(f"the {task.name} could not be closed: it is still open, or the camera does not see it")

    def _handle(self) -> tuple[Array, Array]:
        """Return where the handle is, and the direction that closes it."""
        pose = self._read().object_pose
        yaw = float(pose[3]) if self._task.hinge is not None else 0.0
        return _at(pose[:3], self._task.handle[2]), np.array([math.cos(yaw), math.sin(yaw), 0.0])


def opened_m(task: PandaTask, object_pose: Array) -> float:
    """Return how far a drawer is out, or how long an arc a door's handle has gone."""
    if task.hinge is None:
        return float(task.handle[0] - object_pose[0])
    return float(object_pose[3]) * (task.handle[1] - task.hinge[1])


def _at(pos_m: Array, z_m: float) -> Array:
    return np.array([pos_m[0], pos_m[1], z_m])
