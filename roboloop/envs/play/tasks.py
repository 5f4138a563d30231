"""The tasks of the play world, as functions of what is seen: one formula for the world itself and for whole batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.play.suite import TASKS

OPEN, HOLDING, CLOSED = 1.0, 0.5, 0.0
"""Widths of the gripper: a block keeps it from closing."""
NEAR = 0.15
SHELF_X, STAND_Y = 0.6, 0.5
"""The middle of the shelf, and the height of a block that rests on it or on the perch."""
PLATE_Y = 0.40625
"""Shelf and perch themselves, which no hand can pass: a block on them cannot be grasped from below."""
PERCH = "perch"


class Stand(NamedTuple):
    """What the block is to be put on, and how exact one must be."""

    half: float
    """Half of its length: a block whose middle is over it rests there."""
    grasp: float
    """Distance from hand to block within which closing takes hold of it."""
    x_range: tuple[float, float]
    """Where its middle is drawn from."""
    is_seen: bool
    """Whether observations say where it is."""

    @property
    def obs_size(self) -> int:
        """How many numbers an observation has."""
        return 7 + self.is_seen


SHELF_STAND = Stand(0.25, 0.08, (SHELF_X, SHELF_X), is_seen=False)
PERCH_STAND = Stand(0.0625, 0.04, (0.2, 0.9), is_seen=True)


def stand_of(main: str) -> Stand:
    """Return the furniture of a main task's world."""
    return PERCH_STAND if main == PERCH else SHELF_STAND


class Scene(NamedTuple):
    """What can be seen, as floats of one moment or as arrays of many; a held block is where the hand is."""

    hand_x: Any
    hand_y: Any
    width: Any
    block_x: Any
    block_y: Any
    stand_x: Any = SHELF_X

    def observation(self, stand: Stand) -> list[float]:
        """Return the numbers of an observation: hand and block, the way between them, and that on to the perch."""
        ways = [self.block_x - self.hand_x, self.block_y - self.hand_y]
        return [*self[:5], *ways, *([self.stand_x - self.block_x] if stand.is_seen else [])]


def scene_of(obs: Array) -> Scene:
    """Return the scenes of observations ``[N, 7 or 8]``; their numbers are exact, since all places lie on a grid."""
    columns = np.asarray(obs, np.float64).T
    scene = Scene(*columns[:5])
    return scene if len(columns) == SHELF_STAND.obs_size else scene._replace(stand_x=columns[7] + scene.block_x)


def is_over(x: Any, stand_x: Any, stand: Stand) -> Any:
    """Say whether a place is above or below the stand."""
    return abs(x - stand_x) <= stand.half


def squared_distance(s: Scene) -> Any:
    """Return the squared distance from hand to block."""
    x, y = s.block_x - s.hand_x, s.block_y - s.hand_y
    return x * x + y * y


# no function but operators from here on: numbers and arrays take the same way, and the same rounding


def is_placed(s: Scene, stand: Stand) -> Any:
    """The block rests on the stand, and nobody holds it."""
    return (s.width != HOLDING) & is_over(s.block_x, s.stand_x, stand) & (s.block_y == STAND_Y)


def is_reached(s: Scene, stand: Stand) -> Any:
    """The hand is at the block."""
    return squared_distance(s) <= stand.grasp * stand.grasp


def is_grasped(s: Scene, stand: Stand) -> Any:
    """The hand holds the block."""
    return s.width == HOLDING


def is_moved(s: Scene, stand: Stand) -> Any:
    """The hand holds the block over the stand."""
    return (s.width == HOLDING) & is_over(s.block_x, s.stand_x, stand) & (s.block_y >= STAND_Y)


def is_released(s: Scene, stand: Stand) -> Any:
    """The hand is open beside a block that rests."""
    rests = (s.block_y == 0.0) | ((s.block_y == STAND_Y) & is_over(s.block_x, s.stand_x, stand))
    return (s.width == OPEN) & rests & (squared_distance(s) <= NEAR * NEAR)


def _closeness(s: Scene) -> Any:
    """Return 1 where the hand is at the block, a half at a distance of 0.3, and 0 far away."""
    return 1.0 / (1.0 + squared_distance(s) / 0.09)


def _reward_place(s: Scene, stand: Stand) -> Any:
    """Nothing until it is done: this is what guided play is for."""
    return 1.0 * is_placed(s, stand)


def _reward_reach(s: Scene, stand: Stand) -> Any:
    done = is_reached(s, stand)
    return done + (1 - done) * _closeness(s)


def _reward_grasp(s: Scene, stand: Stand) -> Any:
    """Come close with an open hand, then close it."""
    done = is_grasped(s, stand)
    return done + (1 - done) * (0.25 + 0.25 * (s.width == OPEN)) * _closeness(s)


def _reward_move(s: Scene, stand: Stand) -> Any:
    """Hold the block, and bring it over the stand."""
    done = is_moved(s, stand)
    x, y = s.block_x - s.stand_x, s.block_y - (STAND_Y + NEAR)
    return done + (1 - done) * is_grasped(s, stand) * (0.25 + 0.5 / (1.0 + (x * x + y * y) / 0.09))


def _reward_release(s: Scene, stand: Stand) -> Any:
    done = is_released(s, stand)
    return done + (1 - done) * 0.5 * (s.width == OPEN) * _closeness(s)


FORMULAS = {
    "place": (_reward_place, is_placed),
    PERCH: (_reward_place, is_placed),
    "reach": (_reward_reach, is_reached),
    "grasp": (_reward_grasp, is_grasped),
    "move": (_reward_move, is_moved),
    "release": (_reward_release, is_released),
}
"""Task -> reward of a scene before a stand, between 0 and 1, and whether it is a success."""


class PlayTasks:
    """All tasks, the main one first."""

    def __init__(self, main: str) -> None:
        if main not in TASKS:
            raise ConfigError(f"unknown play task {main!r}{nearest(main, TASKS)}")
        absent = "place" if main == PERCH else PERCH  # there is one stand
        self.names = (main, *(name for name in TASKS if name not in (main, absent)))
        self._stand = stand_of(main)

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``; they depend on the outcome alone."""
        scene = scene_of(next_obs)
        return np.stack([FORMULAS[name][0](scene, self._stand) for name in self.names], axis=1).astype(np.float32)

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        scene = scene_of(next_obs)
        return np.stack([FORMULAS[name][1](scene, self._stand) for name in self.names], axis=1)


def tasks(main: str, cfg: EnvConfig) -> PlayTasks:
    """Return the tasks of ``play/<main>``."""
    return PlayTasks(main)
