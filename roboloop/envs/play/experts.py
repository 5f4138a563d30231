"""Experts of the play world, written and not learned: one for each of its tasks, from any state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.types import Array, Decision
from roboloop.envs.play.tasks import (
    HOLDING,
    NEAR,
    OPEN,
    PERCH,
    PLATE_Y,
    STAND_Y,
    PlayTasks,
    Scene,
    Stand,
    is_placed,
    scene_of,
    squared_distance,
    stand_of,
)
from roboloop.envs.play.world import SPEED

Action = tuple[float, float, float]
LET_GO, HOLD = -1.0, 1.0
EDGE = 0.1
"""So far left of the stand a hand can go up and down."""
DROP_Y = STAND_Y + 0.05
"""Where a block is let go."""


def _to(s: Scene, stand: Stand, x: float, y: float, grip: float) -> Action:
    """Return the next action on the way to a place, around the stand if need be."""
    edge_x = s.stand_x - stand.half - EDGE
    if (s.hand_y > PLATE_Y) == (y > PLATE_Y):
        way_x, way_y = x - s.hand_x, y - s.hand_y
    elif s.hand_x > edge_x + 0.02:
        way_x, way_y = edge_x - s.hand_x, 0.0
    else:
        way_x, way_y = min(x, edge_x) - s.hand_x, y - s.hand_y
    return way_x / SPEED, way_y / SPEED, grip


def _reach(s: Scene, stand: Stand) -> Action:
    """Go to the block; if it is held, it is reached."""
    return _to(s, stand, s.block_x, s.block_y, HOLD if s.width == HOLDING else LET_GO)


def _grasp(s: Scene, stand: Stand) -> Action:
    """Go to the block with an open hand, and close it there."""
    if s.width == HOLDING:
        return 0.0, 0.0, HOLD
    is_there = s.width == OPEN and squared_distance(s) < (0.5 * stand.grasp) ** 2
    return _to(s, stand, s.block_x, s.block_y, HOLD if is_there else LET_GO)


def _move(s: Scene, stand: Stand) -> Action:
    """Take the block over the stand."""
    return _to(s, stand, s.stand_x, DROP_Y, HOLD) if s.width == HOLDING else _grasp(s, stand)


def _place(s: Scene, stand: Stand) -> Action:
    """Take the block over the stand and let go."""
    if is_placed(s, stand):
        return 0.0, 0.0, LET_GO
    x, y = s.stand_x - s.hand_x, DROP_Y - s.hand_y
    if s.width == HOLDING and x * x + y * y < (0.5 * min(NEAR, stand.half)) ** 2:
        return 0.0, 0.0, LET_GO
    return _move(s, stand)


def _release(s: Scene, stand: Stand) -> Action:
    """Let go of what is held; where nothing is, be beside the block with an open hand."""
    if s.width == HOLDING:
        return 0.0, 0.0, LET_GO
    return _to(s, stand, s.block_x, s.block_y, LET_GO)


EXPERTS: dict[str, Callable[[Scene, Stand], Action]] = {
    "place": _place,
    PERCH: _place,
    "reach": _reach,
    "grasp": _grasp,
    "move": _move,
    "release": _release,
}


class PlayExpert(WithoutWeights):
    """The expert of one task, batched."""

    def __init__(self, main: str, task: str) -> None:
        self._main, self._task, self._stand = main, PlayTasks(task).names[0], stand_of(main)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide; it never explores."""
        expert, columns = EXPERTS[self._task], np.broadcast_arrays(*scene_of(obs))
        actions = [expert(Scene(*row), self._stand) for row in np.stack(columns, axis=1).tolist()]
        return Decision(np.clip(np.asarray(actions), -1, 1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "main": self._main, "task": self._task}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PlayExpert:
        """Build the same policy anew."""
        return cls(data["main"], data["task"])


def scripted_policy(task: str, name: str = "") -> PlayExpert:
    """Return the expert of a main task, or of another task in its environment."""
    return PlayExpert(task, name or task)
