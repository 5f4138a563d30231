"""A robot from its side, drawn from its description: one picture for all engines, without a display."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.model import RobotModel, Shape, from_rpy

HEIGHT, WIDTH = 240, 320
METRES_WIDE = 3.2
SKY, FLOOR, LINE = (225, 232, 240), (150, 160, 150), (110, 120, 110)


def _segment(shape: Shape) -> tuple[Array, Array, float]:
    """Return the ends and the radius of a capsule that looks like the shape."""
    if shape.kind == "sphere":
        return np.zeros(3), np.zeros(3), shape.size[0]
    if shape.kind == "capsule":
        return np.array([0, 0, -shape.size[1] / 2]), np.array([0, 0, shape.size[1] / 2]), shape.size[0]
    long = int(np.argmax(shape.size))
    radius = sorted(shape.size)[1] / 2
    end = np.zeros(3)
    end[long] = max(0.0, shape.size[long] / 2 - radius)
    return -end, end, radius


def side_view(model: RobotModel, q: Array) -> Array:
    """Return the picture seen along y, following the robot; lines on the floor are 1 m apart."""
    scale = METRES_WIDE / WIDTH
    x = (np.arange(WIDTH) - WIDTH / 2) * scale + q[0]
    z = (HEIGHT - 1 - np.arange(HEIGHT)) * scale - 0.3
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    picture[:], picture[z < 0] = SKY, FLOOR
    picture[np.ix_(z < 0, np.abs(x - np.round(x)) < scale)] = LINE
    grid = np.stack(np.meshgrid(x, z), -1)
    positions, rotations = model.poses(q)
    depth = np.argsort(-positions[:, 1])  # what is nearer is drawn later
    for i in depth:
        shade = np.array([60 + 40 * (i % 4), 90, 200 - 40 * (i % 4)], np.uint8)
        for shape in model.links[i].shapes:
            a, b, radius = _segment(shape)
            turn = from_rpy(shape.rpy_rad)
            ends = [(positions[i] + rotations[i] @ (np.array(shape.at_m) + turn @ end))[[0, 2]] for end in (a, b)]
            picture[_distance(grid, ends[0], ends[1]) < radius] = shade
    return picture


def _distance(grid: Array, a: Array, b: Array) -> Array:
    """Return how far each point is from the segment between a and b."""
    along = b - a
    length2 = max(float(along @ along), 1e-12)
    share = np.clip((grid - a) @ along / length2, 0.0, 1.0)
    away: Array = np.linalg.norm(grid - (a + share[..., None] * along), axis=-1)
    return away
