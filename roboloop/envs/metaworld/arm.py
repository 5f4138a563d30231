"""One control step of Meta-World's arm: the physics of the original, bit for bit, without work whose result is known.

Meta-World moves the hand's target, takes five substeps and then a forward pass. Two things are left out here:

* The first substep begins with a forward pass over the state that the last control step ended with. Only the hand's
  target and the gripper's command have changed since, so only the constraints are built again.
* While the hand is far from everything and the object rests, collision detection finds nothing, and is a third of the
  physics. Such a step runs without it. If the hand then has moved further than expected, or a collision is found after
  all, the step is taken back and done in full.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import mujoco
import numpy as np

from roboloop.core.types import Array

CLEARANCE_M = 0.012
"""Room between the hand and anything else, beside its stride: for turning (0.006), objects (0.002) and what is left."""
COS_TILT = 0.99966
"""Least cosine of half the angle by which the hand may have turned since its room was measured: 3 degrees."""
SHIFT = 2e-3
"""Metres or radians by which an object may have moved since then."""
DRIFT, REST = 3e-4, 1e-5
"""How far it may move in a control step, and how far without looking for collisions at the step's end."""
TRUST = 10
"""Control steps in a row that may pass without looking at all."""
PATIENCE = 8
"""Control steps until room is measured again after it was of no use."""
NO_CONTACT = int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
STATE = mujoco.mjtState.mjSTATE_INTEGRATION
MOVES = int(mujoco.mjtState.mjSTATE_FULLPHYSICS) | int(mujoco.mjtState.mjSTATE_WARMSTART)
"""The part of the state that a simulation changes."""
AXES = np.arange(3)
SINGLES = struct.Struct("3f")


class Room:
    """A box of hand positions in which nothing can touch anything, measured when it is asked for."""

    def __init__(self, model: Any, data: Any, period_s: float) -> None:
        self._data = data
        hand, weld = model.body("hand").id, model.body_weldid
        root, owner, of_joint = model.body_rootid, weld[model.geom_bodyid], weld[model.jnt_bodyid]
        collides = (model.geom_contype | model.geom_conaffinity) > 0
        on_arm = root[model.geom_bodyid] == root[hand]
        arm = np.flatnonzero(collides & on_arm)
        self._geoms, self._arm = np.concatenate([arm, np.flatnonzero(collides & ~on_arm)]), len(arm)
        self._centre, self._half = model.geom_aabb[self._geoms, :3, None], model.geom_aabb[self._geoms, 3:, None]
        self._fingers = np.flatnonzero(weld[model.body_parentid[model.jnt_bodyid]] == weld[hand])
        self._slides, self._limits = model.jnt_qposadr[self._fingers], model.jnt_range[self._fingers]
        parts = [weld[hand], *of_joint[self._fingers]]
        self._part = np.array([parts.index(body) if body in parts else -1 for body in owner[arm]])
        """Of the arm's geoms: 0 the palm, then the fingers."""
        objects = np.flatnonzero(root[model.jnt_bodyid] != root[hand])
        loose = np.isin(model.jnt_type[objects], (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL)).any()
        self.exists = bool(self._part.min(initial=0) >= 0 and not loose)
        """Whether the model can have room at all: a loose object always lies on something."""
        self._objects = [(int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])) for j in objects]
        self._period_s = period_s
        self._hand, self._quat, self._qpos, self._qvel = data.xpos[hand], data.xquat[hand], data.qpos, data.qvel
        self._from = self._turned = [0.0, 0.0, 0.0]
        self._placed: list[tuple[int, int, float]] = []
        self._stride = 0.0
        self._box: list[float] | None = None
        self._wait = self._unseen = 0
        self.sure = False
        """Whether not even the end of the coming step needs a look."""

    def forget(self) -> None:
        """Begin anew, for another episode or another state."""
        self._box, self._wait = None, 0

    def holds(self) -> bool:
        """Tell whether nothing can touch anything in the coming step, if the hand keeps its pace."""
        here, before = self._hand.tolist(), self._from
        self._from = here
        if self._box is None:
            return False
        (x, y, z), (a, b, c) = here, before
        self._stride = far = 0.005 + 1.5 * max(abs(x - a), abs(y - b), abs(z - c))
        left, front, down, right, back, up = self._box
        inside = left + far < x < right - far and front + far < y < back - far and down + far < z < up - far
        if inside and (drift := self._drift()) <= DRIFT:
            self._wait = 0
            self._unseen = self._unseen + 1 if drift <= REST and self._unseen < TRUST else 0
            self.sure = self._unseen > 0
            return True
        self._box = None
        return False

    def _drift(self) -> float:
        """Return how far objects go in a control step; infinity if they or the hand's angle are not as measured."""
        (a, b, c, d), (e, f, g, h) = self._quat.tolist(), self._turned
        if abs(a * e + b * f + c * g + d * h) < COS_TILT:
            return math.inf
        drift = 0.0
        for place, speed, placed in self._placed:
            if abs(self._qpos.item(place) - placed) > SHIFT:
                return math.inf
            drift = max(drift, abs(self._qvel.item(speed)) * self._period_s)
        return drift

    def kept(self) -> bool:
        """Tell whether the step went as ``holds`` expected."""
        (x, y, z), (a, b, c), far = self._hand.tolist(), self._from, self._stride
        near = abs(x - a) < far and abs(y - b) < far and abs(z - c) < far
        return near and (self.sure or not self._data.ncon)

    def look(self) -> None:
        """After a step with collisions: measure the room, if nothing touches and it was of use or is long ago."""
        if self._wait > 0:
            self._wait -= 1
        elif self._data.ncon == 0:
            self._turned = self._quat.tolist()
            self._placed = [(place, speed, self._qpos.item(place)) for place, speed in self._objects]
            self._box = self._measure() if self._drift() <= DRIFT else None
            self._wait = PATIENCE

    def _measure(self) -> list[float] | None:
        """Return a box around the hand that keeps it on that side of each obstacle where the gap is widest."""
        data, arm, hand = self._data, self._arm, self._hand
        turn = data.geom_xmat[self._geoms].reshape(-1, 3, 3)
        centre = data.geom_xpos[self._geoms] + (turn @ self._centre)[:, :, 0]
        half = (np.abs(turn) @ self._half)[:, :, 0]
        low, high = centre - half, centre + half
        ways = (self._limits - data.qpos[self._slides, None])[:, :, None] * data.xaxis[self._fingers, None]
        slide = np.zeros((2, len(ways) + 1, 3))  # of palm and fingers, from where they are to either end
        slide[0, 1:], slide[1, 1:] = ways.min(1), ways.max(1)
        ahead = (high[:arm] + slide[1, self._part]).max(0) - hand
        behind = hand - (low[:arm] + slide[0, self._part]).min(0)
        before, after = low[arm:] - ahead - CLEARANCE_M, high[arm:] + behind + CLEARANCE_M
        gaps = np.concatenate([hand - after, before - hand], axis=1)  # the hand is clear above after or below before
        side = gaps.argmax(1)[:, None]
        if gaps.max(1).min() <= 0:
            return None
        lowest = np.where(side == AXES, after, -np.inf).max(0)
        highest = np.where(side - 3 == AXES, before, np.inf).min(0)
        return [*lowest.tolist(), *highest.tolist()]


class Arm:
    """Moves the hand by one action."""

    def __init__(self, env: Any) -> None:
        model, data = env.model, env.data
        self._model, self._data, self._substeps = model, data, int(env.frame_skip)
        self._scale = float(np.float32(env.action_scale))
        (self._x0, self._y0, self._z0), (self._x1, self._y1, self._z1) = env.mocap_low.tolist(), env.mocap_high.tolist()
        mocap = model.body("mocap").id
        self._goal, self._goal_seen, self._ctrl = data.mocap_pos[0], data.xpos[mocap], data.ctrl
        self._options, self._flags = model.opt, int(model.opt.disableflags)
        self._saved = np.empty(mujoco.mj_stateSize(model, MOVES))
        self._room = Room(model, data, float(model.opt.timestep) * self._substeps)
        self._shortcut = _knows_first_substep(model, mocap)
        self._forwarded, self._collides = False, True

    def forget(self) -> None:
        """Forget what is known of the present state, because something else has changed it."""
        self._collide(True)
        self._room.forget()
        self._forwarded = False

    def _collide(self, wanted: bool) -> None:
        if wanted != self._collides:
            self._options.disableflags = self._flags if wanted else self._flags | NO_CONTACT
            self._collides = wanted

    def step(self, action: Array) -> None:
        """Move the hand's target and simulate one control step."""
        self._aim(action)
        room = self._room
        if not room.exists:
            self._simulate(True, True)
            return
        if room.holds():
            mujoco.mj_getState(self._model, self._data, self._saved, MOVES)
            self._simulate(False, not room.sure)
            if room.kept():
                return
            mujoco.mj_setState(self._model, self._data, self._saved, MOVES)
            self.forget()
        self._simulate(True, True)
        room.look()

    def _aim(self, action: Array) -> None:
        goal, ctrl, scale = self._goal, self._ctrl, self._scale
        dx, dy, dz, grip = action.tolist()
        dx, dy, dz = SINGLES.unpack(SINGLES.pack(dx * scale, dy * scale, dz * scale))  # Meta-World rounds here
        x, y, z = goal.tolist()
        x, y, z = x + dx, y + dy, z + dz
        goal[0] = self._x0 if x < self._x0 else self._x1 if x > self._x1 else x
        goal[1] = self._y0 if y < self._y0 else self._y1 if y > self._y1 else y
        goal[2] = self._z0 if z < self._z0 else self._z1 if z > self._z1 else z
        ctrl[0], ctrl[1] = grip, -grip

    def _simulate(self, collide: bool, collide_at_end: bool) -> None:
        model, data = self._model, self._data
        self._collide(collide)
        if self._forwarded:
            self._goal_seen[:] = self._goal
            mujoco.mj_makeConstraint(model, data)
            mujoco.mj_referenceConstraint(model, data)
            mujoco.mj_step2(model, data)
            mujoco.mj_step(model, data, self._substeps - 1)
        else:
            mujoco.mj_step(model, data, self._substeps)
        self._collide(collide_at_end)
        mujoco.mj_forward(model, data)
        self._forwarded = self._shortcut


def _knows_first_substep(model: Any, mocap: int) -> bool:
    """Tell whether the hand's target acts through constraints alone, and these need nothing but to be built again."""
    solver = model.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON and model.opt.noslip_iterations == 0
    plain = model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER and model.opt.enableflags == 0
    geoms = model.geom_bodyid == mocap
    untouchable = not (model.geom_contype[geoms].any() or model.geom_conaffinity[geoms].any())
    alone = not (model.body_parentid[1:] == mocap).any()
    return bool(solver and plain and untouchable and alone and model.nsensor == 0 and model.nplugin == 0)
