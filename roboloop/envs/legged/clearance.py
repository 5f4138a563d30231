"""How far a robot is above its floor, from its description alone."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.model import RobotModel, Shape, from_rpy


def _reach_down_m(shape: Shape, up_in_shape: Array) -> float:
    """Return how far a shape goes below its centre; ``up_in_shape`` is the world's up along the shape's axes."""
    if shape.kind == "sphere":
        return shape.size[0]
    if shape.kind == "capsule":
        return shape.size[0] + float(abs(up_in_shape[2])) * shape.size[1] / 2
    return float(np.abs(up_in_shape) @ np.array(shape.size)) / 2


def lowest_m(model: RobotModel, q: Array) -> float:
    """Return the height of the robot's lowest point."""
    positions, rotations = model.poses(q)
    return min(
        float(at[2] + turn[2] @ shape.at_m) - _reach_down_m(shape, turn[2] @ from_rpy(shape.rpy_rad))
        for at, turn, link in zip(positions, rotations, model.links, strict=True)
        for shape in link.shapes
    )


def raised(model: RobotModel, q: Array, by_m: float) -> Array:
    """Return the pose higher up."""
    q = q.copy()
    q[1 if model.root == "planar" else 2] += by_m
    return q
