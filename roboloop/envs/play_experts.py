"""Experts of the play world, written and not learned: one for each of its tasks, from any state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.types import Array, Decision
from roboloop.envs.play import SPEED
from roboloop.envs.play_tasks import (
    GRASP,
    HOLDING,
    NEAR,
    OPEN,
    PLATE_Y,
    SHELF_HALF,
    SHELF_X,
    SHELF_Y,
    PlayTasks,
    Scene,
    is_placed,
    scene_of,
    squared_distance,
)

Action = tuple[float, float, float]
LET_GO, HOLD = -1.0, 1.0
EDGE_X = SHELF_X - SHELF_HALF - 0.1
"""Left of the shelf, where a hand can go up and down."""
TARGET = (SHELF_X, SHELF_Y + 0.05)
"""Where a block is let go."""


def _to(s: Scene, x: float, y: float, grip: float) -> Action:
    """Return the next action on the way to a place, around the shelf if need be."""
    if (s.hand_y > PLATE_Y) == (y > PLATE_Y):
        way_x, way_y = x - s.hand_x, y - s.hand_y
    elif s.hand_x > EDGE_X + 0.02:
        way_x, way_y = EDGE_X - s.hand_x, 0.0
    else:
        way_x, way_y = min(x, EDGE_X) - s.hand_x, y - s.hand_y
    return way_x / SPEED, way_y / SPEED, grip


def _reach(s: Scene) -> Action:
    """Go to the block; if it is held, it is reached."""
    return _to(s, s.block_x, s.block_y, HOLD if s.width == HOLDING else LET_GO)


def _grasp(s: Scene) -> Action:
    """Go to the block with an open hand, and close it there."""
    if s.width == HOLDING:
        return 0.0, 0.0, HOLD
    is_there = s.width == OPEN and squared_distance(s) < (0.5 * GRASP) ** 2
    return _to(s, s.block_x, s.block_y, HOLD if is_there else LET_GO)


def _move(s: Scene) -> Action:
    """Take the block over the shelf."""
    return _to(s, *TARGET, HOLD) if s.width == HOLDING else _grasp(s)


def _place(s: Scene) -> Action:
    """Take the block over the shelf and let go."""
    if is_placed(s):
        return 0.0, 0.0, LET_GO
    x, y = TARGET[0] - s.hand_x, TARGET[1] - s.hand_y
    if s.width == HOLDING and x * x + y * y < (0.5 * NEAR) ** 2:
        return 0.0, 0.0, LET_GO
    return _move(s)


def _release(s: Scene) -> Action:
    """Let go of what is held; where nothing is, be beside the block with an open hand."""
    if s.width == HOLDING:
        return 0.0, 0.0, LET_GO
    return _to(s, s.block_x, s.block_y, LET_GO)


EXPERTS: dict[str, Callable[[Scene], Action]] = {
    "place": _place,
    "reach": _reach,
    "grasp": _grasp,
    "move": _move,
    "release": _release,
}


class PlayExpert(WithoutWeights):
    """The expert of one task, batched."""

    def __init__(self, task: str) -> None:
        self._task = PlayTasks(task).names[0]

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide; it never explores."""
        expert = EXPERTS[self._task]
        actions = [expert(Scene(*row)) for row in np.stack(scene_of(obs), axis=1).tolist()]
        return Decision(np.clip(np.asarray(actions), -1, 1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "task": self._task}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PlayExpert:
        """Build the same policy anew."""
        return cls(data["task"])


def scripted_policy(task: str, name: str = "") -> PlayExpert:
    """Return the expert of a main task, or of another task in its environment: they are the same."""
    return PlayExpert(name or task)
