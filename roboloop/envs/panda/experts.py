"""Policies that were written, not learned: one per task, from what the task's own observation shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Decision
from roboloop.envs.panda import tasks
from roboloop.envs.panda.auxiliary import REACHED_PUCK_M
from roboloop.envs.panda.config import PandaConfig

PER_ACTION_M = 0.04 / np.sqrt(3.0)
"""How far a full action moves one axis, at the rig's default speed and rate."""
GAIN = 0.5
"""Share of the way that is asked for in one step: the arm is still on its way when the next is decided."""
OPEN, CLOSE = -1.0, 1.0
GRASPED_M, AT_HANDLE_M = 0.03, 0.012
CONTACT_M = 0.055
"""From the hand to the puck's middle when they touch, roughly."""
AROUND_M = 0.085
DONE_M = 0.01


def _towards(way_m: Array, gain: float = GAIN) -> Array:
    """Return the action that goes along a way, in its direction even where it asks for too much."""
    action: Array = gain * way_m / PER_ACTION_M
    action /= max(1.0, float(np.abs(action).max()))
    return action


def _reach(obs: Array) -> Array:
    return _towards(obs[3:6] - obs[:3])


def _push(obs: Array) -> Array:
    """Go around to the side of the puck that is away from the goal, then push."""
    hand, puck, goal = obs[:2], obs[2:4], obs[6:8]
    left_m = float(np.linalg.norm(goal - puck))
    if left_m < DONE_M:
        return np.zeros(2)
    ahead = (goal - puck) / left_m
    aside = np.array([-ahead[1], ahead[0]])
    along_m, across_m = float((hand - puck) @ ahead), float((hand - puck) @ aside)
    if along_m < -0.03 and abs(across_m) < 0.012:
        way = ahead * (min(left_m, 0.03) + max(0.0, -along_m - CONTACT_M)) - aside * across_m
        return _towards(way, 0.6)
    if along_m > -CONTACT_M and abs(across_m) < AROUND_M:  # beside or before it: first out, then back
        side = np.sign(across_m) or 1.0
        return _towards(aside * side * (AROUND_M + 0.01 - abs(across_m)) - ahead * 0.02)
    if along_m > -CONTACT_M - 0.02:
        return _towards(-ahead * (along_m + CONTACT_M + 0.03))
    return _towards(puck - ahead * (CONTACT_M + 0.02) - hand)


def _open(hand: Array, handle: Array, width_m: float, pull: Array, left_m: float) -> Array:
    """Go to the handle with an open hand, close it, and pull."""
    to_handle = handle - hand
    if width_m > GRASPED_M:
        is_there = float(np.linalg.norm(to_handle)) < AT_HANDLE_M
        return np.append(_towards(to_handle), CLOSE if is_there else OPEN)
    if float(np.linalg.norm(to_handle)) > 3 * AT_HANDLE_M:  # it slipped out
        return np.append(np.zeros(len(hand)), OPEN)
    return np.append(_towards(pull * min(left_m, 0.04)), CLOSE)


def _hold_on(hand: Array, handle: Array, width_m: float) -> Array:
    """Go to the handle with an open hand, close it, and stay."""
    return _open(hand, handle, width_m, np.zeros(len(hand)), 0.0)


def _be_at(hand: Array, handle: Array) -> Array:
    """Go to the handle with an open hand."""
    return np.append(_towards(handle - hand), OPEN)


def _be_behind(obs: Array) -> Array:
    """Go to where the push begins, around the puck, and stay."""
    hand, puck = obs[:2], obs[2:4]
    is_there = float(np.linalg.norm(puck - hand)) < REACHED_PUCK_M
    return np.zeros(2) if is_there else _push(obs)


def _drawer(obs: Array) -> Array:
    task = tasks.TABLE["drawer"]
    left_m = task.opening + 0.01 - (task.handle[0] - float(obs[1]))
    return _open(obs[:1], obs[1:2], float(obs[2]), np.array([-1.0]), max(0.0, left_m))


def _door(obs: Array) -> Array:
    task = tasks.TABLE["door"]
    assert task.hinge is not None
    yaw = float(obs[4])
    left_m = task.opening + 0.02 - yaw * (task.handle[1] - task.hinge[1])
    pull = np.array([-np.cos(yaw), -np.sin(yaw)])
    return _open(obs[:2], obs[2:4], float(obs[5]), pull, max(0.0, left_m))


OBS_SIZES = {"reach": 6, "push": 8, "drawer": 3, "door": 6}
"""Of the observations that the experts understand."""

EXPERTS: dict[str, dict[str, Callable[[Array], Array]]] = {
    "reach": {"reach": _reach},
    "push": {"push": _push, "reach": _be_behind},
    "drawer": {
        "open": _drawer,
        "reach": lambda obs: _be_at(obs[:1], obs[1:2]),
        "grasp": lambda obs: _hold_on(obs[:1], obs[1:2], float(obs[2])),
    },
    "door": {
        "open": _door,
        "reach": lambda obs: _be_at(obs[:2], obs[2:4]),
        "grasp": lambda obs: _hold_on(obs[:2], obs[2:4], float(obs[5])),
    },
}
"""Task -> the experts of its auxiliary tasks, the main one first."""


class PandaExpert(WithoutWeights):
    """The expert of one task, batched."""

    def __init__(self, task: str, name: str = "") -> None:
        self._task = tasks.find(task, PandaConfig()).name
        self._name = name or next(iter(EXPERTS[self._task]))
        self._expert, self._obs_size = EXPERTS[self._task][self._name], OBS_SIZES[self._task]

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide; it never explores."""
        if obs.shape[1] != self._obs_size:
            raise ConfigError(f"the expert of panda/{self._task} needs the task's own env.panda.observe")
        actions = [self._expert(row) for row in np.asarray(obs, np.float64)]
        return Decision(np.clip(np.asarray(actions), -1, 1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "task": self._task, "name": self._name}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PandaExpert:
        """Build the same policy anew."""
        return cls(data["task"], data["name"])


def scripted_policy(task: str, name: str = "") -> PandaExpert:
    """Return the expert of a task such as ``drawer``, or of one of its auxiliary tasks, such as ``grasp``."""
    return PandaExpert(task, name)
