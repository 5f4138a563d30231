"""The tasks of the play world, as functions of what is seen: one formula for the world itself and for whole batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs import names
from roboloop.envs.config import EnvConfig

OPEN, HOLDING, CLOSED = 1.0, 0.5, 0.0
"""Widths of the gripper: a block keeps it from closing."""
GRASP = 0.08
"""Distance from hand to block within which closing takes hold of it."""
NEAR = 0.15
SHELF_X, SHELF_Y, SHELF_HALF = 0.6, 0.5, 0.25
"""Where a block rests on the shelf: its height, and the middle and half the length of the shelf."""
PLATE_Y = 0.40625
"""The shelf itself, which no hand can pass: a block on it cannot be grasped from below."""
OBS_SIZE = 7


class Scene(NamedTuple):
    """What can be seen, as floats of one moment or as arrays of many; a held block is where the hand is."""

    hand_x: Any
    hand_y: Any
    width: Any
    block_x: Any
    block_y: Any

    def observation(self) -> list[float]:
        """Return the numbers of an observation: the scene, and the way from hand to block."""
        return [*self, self.block_x - self.hand_x, self.block_y - self.hand_y]


def scene_of(obs: Array) -> Scene:
    """Return the scenes of observations ``[N, 7]``; their numbers are exact, since all places lie on a grid."""
    return Scene(*np.asarray(obs, np.float64).T[: len(Scene._fields)])


def over_shelf(x: Any) -> Any:
    """Say whether a place is above or below the shelf."""
    return abs(x - SHELF_X) <= SHELF_HALF


def squared_distance(s: Scene) -> Any:
    """Return the squared distance from hand to block."""
    x, y = s.block_x - s.hand_x, s.block_y - s.hand_y
    return x * x + y * y


# no function but operators from here on: numbers and arrays take the same way, and the same rounding


def is_placed(s: Scene) -> Any:
    """The block rests on the shelf, and nobody holds it."""
    return (s.width != HOLDING) & over_shelf(s.block_x) & (s.block_y == SHELF_Y)


def is_reached(s: Scene) -> Any:
    """The hand is at the block."""
    return squared_distance(s) <= GRASP * GRASP


def is_grasped(s: Scene) -> Any:
    """The hand holds the block."""
    return s.width == HOLDING


def is_moved(s: Scene) -> Any:
    """The hand holds the block over the shelf."""
    return (s.width == HOLDING) & over_shelf(s.block_x) & (s.block_y >= SHELF_Y)


def is_released(s: Scene) -> Any:
    """The hand is open beside a block that rests."""
    rests = (s.block_y == 0.0) | ((s.block_y == SHELF_Y) & over_shelf(s.block_x))
    return (s.width == OPEN) & rests & (squared_distance(s) <= NEAR * NEAR)


def _closeness(s: Scene) -> Any:
    """Return 1 where the hand is at the block, a half at a distance of 0.3, and 0 far away."""
    return 1.0 / (1.0 + squared_distance(s) / 0.09)


def _reward_place(s: Scene) -> Any:
    """Nothing until it is done: this is what guided play is for."""
    return 1.0 * is_placed(s)


def _reward_reach(s: Scene) -> Any:
    done = is_reached(s)
    return done + (1 - done) * _closeness(s)


def _reward_grasp(s: Scene) -> Any:
    """Come close with an open hand, then close it."""
    done = is_grasped(s)
    return done + (1 - done) * (0.25 + 0.25 * (s.width == OPEN)) * _closeness(s)


def _reward_move(s: Scene) -> Any:
    """Hold the block, and bring it over the shelf."""
    done = is_moved(s)
    x, y = s.block_x - SHELF_X, s.block_y - (SHELF_Y + NEAR)
    return done + (1 - done) * is_grasped(s) * (0.25 + 0.5 / (1.0 + (x * x + y * y) / 0.09))


def _reward_release(s: Scene) -> Any:
    done = is_released(s)
    return done + (1 - done) * 0.5 * (s.width == OPEN) * _closeness(s)


FORMULAS = {
    "place": (_reward_place, is_placed),
    "reach": (_reward_reach, is_reached),
    "grasp": (_reward_grasp, is_grasped),
    "move": (_reward_move, is_moved),
    "release": (_reward_release, is_released),
}
"""Task -> reward of a scene, between 0 and 1, and whether it is a success."""


class PlayTasks:
    """All tasks, the main one first."""

    def __init__(self, main: str) -> None:
        if main not in names.PLAY:
            raise ConfigError(f"unknown play task {main!r}{nearest(main, names.PLAY)}")
        self.names = (main, *(name for name in names.PLAY if name != main))

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``; they depend on the outcome alone."""
        scene = scene_of(next_obs)
        return np.stack([FORMULAS[name][0](scene) for name in self.names], axis=1).astype(np.float32)

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        scene = scene_of(next_obs)
        return np.stack([FORMULAS[name][1](scene) for name in self.names], axis=1)


def tasks(main: str, cfg: EnvConfig) -> PlayTasks:
    """Return the tasks of ``play/<main>``."""
    return PlayTasks(main)
