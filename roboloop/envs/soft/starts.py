"""First states: crumpled by chance, made when first asked for and kept, equal in every process.

State number k of a pool depends on k alone; an episode's seed draws k, then turns and shifts it, so that two episodes
never begin alike and those of training are not those of a test.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.envs.env import SimulatorDied
from roboloop.envs.soft.model import Flex
from roboloop.envs.soft.physics import Physics

POOL_SEED = 0
TUMBLES = {"rope": 5, "cloth": 3}
"""Random picks and places that crumple it."""
TUMBLE_M = 0.2
"""Half width of their moves."""
TUMBLE_HEIGHT_M = (0.03, 0.12)
SHIFT_M = 0.02
FLAT_SHIFT_M, FLAT_TURN_RAD = 0.03, 0.5

_made: dict[tuple[Flex, int], Array] = {}
"""States of all pools, shared by the environments of this process; each is a few kilobytes."""


def crumpled(physics: Physics, rng: np.random.Generator) -> Array:
    """Return places ``[N, 3]`` after random picks and places from flat, with their middle in the table's."""
    flex = physics.flex
    low_m, high_m = TUMBLE_HEIGHT_M if flex.is_sheet else (0.0, 0.0)
    while True:
        physics.put_points(flex.flat_m)
        try:
            for _ in range(TUMBLES[flex.name]):
                particle = int(rng.integers(flex.num_particles))
                target_m = physics.points_m[particle, :2] + rng.uniform(-TUMBLE_M, TUMBLE_M, 2)
                target_m = np.clip(target_m, -flex.half_m, flex.half_m)
                physics.pick_place([particle], target_m[None], [float(rng.uniform(low_m, high_m))])
        except SimulatorDied:
            continue  # such a state is not worth starting from
        points_m = physics.points_m
        points_m[:, :2] -= 0.5 * (points_m[:, :2].min(axis=0) + points_m[:, :2].max(axis=0))
        return points_m


def of_pool(physics: Physics, number: int) -> Array:
    """Return state number k; the physics must be as the model describes it, without variations."""
    key = physics.flex, number
    if key not in _made:
        _made[key] = crumpled(physics, stream(POOL_SEED, f"soft pool {physics.flex.name} {physics.flex.rows}", number))
    return _made[key]


def turned(points_m: Array, angle_rad: float, shift_m: Array) -> Array:
    """Return places turned about the table's middle, then shifted."""
    cos, sin = np.cos(angle_rad), np.sin(angle_rad)
    moved = points_m.copy()
    moved[:, :2] = points_m[:, :2] @ np.array([[cos, sin], [-sin, cos]]) + shift_m
    return moved


def draw(physics: Physics, is_crumpled: bool, pool: int, attempt: int, rng: np.random.Generator) -> Array:
    """Return the first places of an episode; a later attempt draws from a pool of others."""
    if not is_crumpled:
        angle = float(rng.uniform(-FLAT_TURN_RAD, FLAT_TURN_RAD))
        return turned(physics.flex.flat_m, angle, rng.uniform(-FLAT_SHIFT_M, FLAT_SHIFT_M, 2))
    points_m = of_pool(physics, attempt * pool + int(rng.integers(pool))) if pool else crumpled(physics, rng)
    return turned(points_m, float(rng.uniform(-np.pi, np.pi)), rng.uniform(-SHIFT_M, SHIFT_M, 2))


def fixed(physics: Physics, is_crumpled: bool, number: int) -> Array:
    """Return the first places of every episode; numbers are others to choose from."""
    return of_pool(physics, number).copy() if is_crumpled else physics.flex.flat_m
