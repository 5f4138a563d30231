"""Picking and placing in MuJoCo: hold particles, carry them over the table, let go, wait.

A held particle follows the hand exactly: for that time it is so heavy that nothing moves it, and its velocity is set
before each step. (A spring or a soft ``connect`` lags by centimetres at these speeds, or shakes the sheet to pieces.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mujoco
import numpy as np

from roboloop.core.types import Array
from roboloop.envs.env import SimulatorDied
from roboloop.envs.soft.geometry import max_strain
from roboloop.envs.soft.model import TIMESTEP_S, Flex, xml

HELD_KG = 1e3
LIFT_M = 0.01
"""Least height of a carry over the higher of its two ends."""
LEAST_STEPS = 4
"""Of the shortest carry."""
SMOOTH = 1.2
"""A carry that starts and stops softly takes this much longer than one at full speed."""
MOST_STRAIN = 1.0
"""An edge of twice its length, or of none, after things have settled: the physics has failed."""
MOST_STRETCH = 1.05
"""Two hands pull a sheet no farther apart than this times what lies between them."""
MOST_HEIGHT_M = 0.5


class Physics:
    """One rope or cloth; its whole state between two actions is where its particles are."""

    def __init__(self, flex: Flex, picture_size: int) -> None:
        self.flex = flex
        self.model = mujoco.MjModel.from_xml_string(xml(flex, picture_size))
        self.data = mujoco.MjData(self.model)
        self.model.dof_damping[:] = np.tile(flex.drag_ns_m, flex.num_particles)
        self._first_dof = self.model.body_dofadr[self.model.flex_vertbodyid].copy()
        self._order = (self._first_dof[:, None] + np.arange(3)).ravel()
        mujoco.mj_forward(self.model, self.data)
        self._rest_m = self.data.flexvert_xpos.copy()
        self._edges, self._lengths_m = self.model.flex_edge.copy(), self.model.flexedge_length0.copy()
        self.steps = 0
        """Physics steps so far."""

    @property
    def points_m(self) -> Array:
        """Places of the particles, ``[N, 3]``."""
        points_m: Array = self._rest_m + self.data.qpos[self._order].reshape(-1, 3)
        return points_m

    @property
    def displacement(self) -> Array:
        """The state: MuJoCo's positions, which count from where the particles began."""
        displacement: Array = self.data.qpos.copy()
        return displacement

    def put(self, displacement: Array) -> None:
        """Put the particles somewhere, at rest; nothing else is left of the past."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = displacement

    def put_points(self, points_m: Array) -> None:
        """Put the particles at places ``[N, 3]``."""
        displacement = np.zeros(self.model.nq)
        displacement[self._order] = (points_m - self._rest_m).ravel()
        self.put(displacement)

    def update_places(self) -> None:
        """Make MuJoCo's own places follow the state, for pictures; dynamics is left out."""
        for update in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight, mujoco.mj_flex):
            update(self.model, self.data)

    @property
    def strain(self) -> float:
        """Of the worst edge."""
        return max_strain(self.points_m, self._edges, self._lengths_m)

    def pick_place(self, particles: Sequence[int], targets_m: Array, heights_m: Sequence[float]) -> None:
        """Carry particles to places ``[hands, 2]`` on the table, each over a height, all at once; let go; settle."""
        self.put(self.displacement)  # so that the outcome depends on nothing but where the particles are
        start_m = self.points_m[list(particles)]
        path_m = self._path(start_m, self._within_reach(particles, start_m, targets_m), heights_m)
        dofs = self._first_dof[list(particles), None] + np.arange(3)
        model, data = self.model, self.data
        kept = model.dof_M0[dofs].copy()
        model.dof_M0[dofs] = HELD_KG
        try:
            for before_m, after_m in itertools.pairwise(path_m):
                data.qvel[dofs] = (after_m - before_m) / TIMESTEP_S
                mujoco.mj_step(model, data)
            for _ in range(self.flex.hold_steps):
                data.qvel[dofs] = 0.0
                mujoco.mj_step(model, data)
        finally:
            model.dof_M0[dofs] = kept
        data.qvel[dofs] = 0.0
        mujoco.mj_step(model, data, nstep=self.flex.settle_steps)
        self.steps += len(path_m) - 1 + self.flex.hold_steps + self.flex.settle_steps
        self._must_be_whole()
        self.put(self.displacement)

    def _path(self, start_m: Array, ends_m: Array, heights_m: Sequence[float]) -> Array:
        """Return the hands' places at each step, ``[steps + 1, hands, 3]``: soft at both ends, an arch in between."""
        end_m = np.column_stack([ends_m, np.full(len(ends_m), self.flex.rest_height_m)])
        arch_m = LIFT_M + np.asarray(heights_m)
        rise_m = np.abs(end_m[:, 2] - start_m[:, 2]) + 2.0 * arch_m
        way_m = float((np.linalg.norm((end_m - start_m)[:, :2], axis=1) + rise_m).max())
        steps = max(LEAST_STEPS, int(np.ceil(SMOOTH * way_m / (self.flex.hand_speed_m_s * TIMESTEP_S))))
        share = np.linspace(0.0, 1.0, steps + 1)[:, None, None]
        path_m: Array = start_m + (end_m - start_m) * (share * share * (3.0 - 2.0 * share))
        path_m[..., 2] += arch_m * np.sin(np.pi * share[..., 0])
        return path_m

    def _within_reach(self, particles: Sequence[int], start_m: Array, targets_m: Array) -> Array:
        """Return the targets, or places on the way to them where two would tear what is between them."""
        if len(particles) < 2:
            return targets_m
        here, way = start_m[:, :2], targets_m - start_m[:, :2]
        flat_m = float(np.linalg.norm(np.subtract(*self.flex.flat_m[list(particles)])))
        most_m = max(MOST_STRETCH * flat_m, float(np.linalg.norm(np.subtract(*start_m))))
        for share in np.linspace(1.0, 0.0, 21):
            ends: Array = here + share * way
            if np.linalg.norm(ends[0] - ends[1]) <= most_m:
                break
        return ends

    def _must_be_whole(self) -> None:
        """Raise where the physics has failed: such an outcome is a fault of the simulator, not data."""
        points_m = self.points_m
        is_bad = any(self.data.warning[kind].number for kind in _BAD)
        if is_bad or not np.isfinite(points_m).all() or np.abs(points_m).max() > MOST_HEIGHT_M + self.flex.length_m:
            raise SimulatorDied(f"the {self.flex.name} flew apart")
        strain = self.strain
        if strain > MOST_STRAIN:
            raise SimulatorDied(f"an edge of the {self.flex.name} is off by {strain:.0%} of its length")


_BAD = (mujoco.mjtWarning.mjWARN_BADQACC, mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL)
