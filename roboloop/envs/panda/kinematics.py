"""Where the hand is for given joint angles, and which angles bring it to a pose."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from roboloop.core.types import Array
from roboloop.envs.panda.model import ARM_JOINTS, EE
from roboloop.envs.panda.tasks import HOME_RAD

ITERATIONS = 10
CLOSE_ENOUGH = 1e-4
DAMPING = 1e-6
TOWARDS_HOME = 0.1
"""How much of the way to the home posture an iteration goes where the pose leaves it free."""
LONGEST_STEP_RAD = 0.2


class Kinematics:
    """Forward and inverse kinematics on a scratch copy of the arm; the simulation's own data are not touched."""

    def __init__(self, model: Any) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._site = model.site(EE).id
        self._arm = slice(0, len(ARM_JOINTS))
        self._low, self._high = model.jnt_range[self._arm].T
        self._home = np.array(HOME_RAD)
        self._jacobian = np.zeros((6, model.nv))

    def pose(self, joint_pos_rad: Array) -> tuple[Array, Array]:
        """Return position and quaternion of the hand."""
        self._data.qpos[self._arm] = joint_pos_rad
        mujoco.mj_kinematics(self._model, self._data)
        return site_pose(self._data, self._site)

    def joints(self, pos_m: Array, quat: Array, near_rad: Array) -> Array:
        """Return joint angles for a pose, near given ones; as close as the arm can where it is out of reach."""
        q = np.array(near_rad)
        for _ in range(ITERATIONS):
            here, turned = self.pose(q)
            error = np.concatenate([pos_m - here, _rotation(turned, quat)])
            if float(np.abs(error).max()) < CLOSE_ENOUGH:
                break
            mujoco.mj_comPos(self._model, self._data)
            mujoco.mj_jacSite(self._model, self._data, self._jacobian[:3], self._jacobian[3:], self._site)
            jacobian = self._jacobian[:, self._arm]
            home = TOWARDS_HOME * (self._home - q)
            # damped least squares; what the pose leaves free goes home
            weights = np.linalg.solve(jacobian @ jacobian.T + DAMPING * np.eye(6), error - jacobian @ home)
            step = jacobian.T @ weights + home
            q = np.clip(q + np.clip(step, -LONGEST_STEP_RAD, LONGEST_STEP_RAD), self._low, self._high)
        return q


def site_pose(data: Any, site: int) -> tuple[Array, Array]:
    """Return position and quaternion of a site."""
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, data.site_xmat[site])
    return data.site_xpos[site].copy(), quat


def _rotation(from_quat: Array, to_quat: Array) -> Array:
    """Return the rotation vector, in the world's axes, that turns one orientation into another."""
    back, turn, vector = np.empty(4), np.empty(4), np.empty(3)
    mujoco.mju_negQuat(back, from_quat)
    mujoco.mju_mulQuat(turn, to_quat, back)
    mujoco.mju_quat2Vel(vector, turn, 1.0)
    return vector
