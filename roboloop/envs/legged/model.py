"""A robot described once: links, joints, shapes; every engine is built from this and nothing else.

Units are SI. A link's frame is at its joint with the parent's axes (at q = 0); inertias are about the centre of mass,
along the link's axes. Joint coordinates ``q`` begin with the root's: (x, z, pitch) of a planar root, (position,
quaternion xyzw) of a free one; ``dq`` likewise (dx, dz, dpitch), or (linear, angular velocity) of the root link's frame
in world axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from roboloop.core.types import Array

Vec3 = tuple[float, float, float]
Size = tuple[float, ...]
ORIGIN: Vec3 = (0.0, 0.0, 0.0)
GRAVITY_M_S2 = -10.0
SUBSTEP_S = 1 / 500


@dataclass(frozen=True)
class Shape:
    """A primitive that touches things, placed in its link's frame."""

    kind: Literal["capsule", "box", "sphere"]
    size: Size
    """capsule: radius, length between the centres of its ends (along its z); box: full lengths; sphere: radius."""
    at_m: Vec3 = ORIGIN
    rpy_rad: Vec3 = ORIGIN


@dataclass(frozen=True)
class Joint:
    """A hinge between a link and its parent."""

    name: str
    axis: Vec3
    at_m: Vec3
    """Where it is in the parent's frame."""
    limits_rad: tuple[float, float]
    damping: float
    """N·m·s/rad."""
    torque_nm: float
    """What its motor can do at most."""


@dataclass(frozen=True)
class Link:
    """One rigid body."""

    name: str
    parent: str
    """Empty for the root."""
    joint: Joint | None
    mass_kg: float
    com_m: Vec3
    inertia_kg_m2: Vec3
    shapes: tuple[Shape, ...]
    foot_m: Vec3 | None = None
    """Where its foot is in its frame, if it has one."""


@dataclass(frozen=True)
class RobotModel:
    """A tree of links, the root first and parents before their children."""

    name: str
    root: Literal["planar", "free"]
    links: tuple[Link, ...]

    @cached_property
    def joints(self) -> tuple[Joint, ...]:
        """The hinges in the order of their links."""
        return tuple(link.joint for link in self.links if link.joint is not None)

    @cached_property
    def feet(self) -> tuple[int, ...]:
        """Numbers of the links that are feet."""
        return tuple(i for i, link in enumerate(self.links) if link.foot_m is not None)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """For each link the number of its parent, -1 for the root."""
        numbers = {link.name: i for i, link in enumerate(self.links)}
        return tuple(numbers[link.parent] if link.parent else -1 for link in self.links)

    @property
    def num_joints(self) -> int:
        """Number of hinges; all have motors."""
        return len(self.joints)

    @property
    def root_q(self) -> int:
        """Numbers that place the root."""
        return 3 if self.root == "planar" else 7

    @property
    def root_dq(self) -> int:
        """Numbers that are the root's velocity."""
        return 3 if self.root == "planar" else 6

    @property
    def mass_kg(self) -> float:
        """Mass of all links."""
        return sum(link.mass_kg for link in self.links)

    @cached_property
    def torque_nm(self) -> Array:
        """Limits of the motors."""
        return np.array([joint.torque_nm for joint in self.joints])

    @cached_property
    def limits_rad(self) -> Array:
        """Lower and upper limits of the hinges, [2, J]."""
        return np.array([joint.limits_rad for joint in self.joints]).T

    def changed(self, links: Mapping[str, Link]) -> RobotModel:
        """Return the robot with some links replaced."""
        return replace(self, links=tuple(links.get(link.name, link) for link in self.links))

    def poses(self, q: Array) -> tuple[Array, Array]:
        """Return where each link's frame is: positions [L, 3] and rotation matrices [L, 3, 3]."""
        positions, rotations = np.zeros((len(self.links), 3)), np.zeros((len(self.links), 3, 3))
        if self.root == "planar":
            positions[0], rotations[0] = (q[0], 0.0, q[1]), rotation_about((0.0, 1.0, 0.0), q[2])
        else:
            positions[0], rotations[0] = q[:3], from_quaternion(q[3:7])
        for i, (link, angle) in enumerate(zip(self.links[1:], q[self.root_q :], strict=True), 1):
            assert link.joint is not None
            up = self.parents[i]
            positions[i] = positions[up] + rotations[up] @ link.joint.at_m
            rotations[i] = rotations[up] @ rotation_about(link.joint.axis, angle)
        return positions, rotations

    def foot_positions(self, q: Array) -> Array:
        """Return where the feet are, [F, 3]."""
        positions, rotations = self.poses(q)
        return np.stack([positions[i] + rotations[i] @ (self.links[i].foot_m or ORIGIN) for i in self.feet])


def rotation_about(axis: Vec3, angle_rad: float) -> Array:
    """Return the matrix that turns by an angle about a unit axis (Rodrigues)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    turned: Array = np.eye(3) + np.sin(angle_rad) * cross + (1 - np.cos(angle_rad)) * cross @ cross
    return turned


def from_rpy(rpy_rad: Vec3) -> Array:
    """Return the matrix of roll, pitch and yaw about fixed axes, as in URDF."""
    roll, pitch, yaw = rpy_rad
    x, y, z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
    turned: Array = rotation_about(z, yaw) @ rotation_about(y, pitch) @ rotation_about(x, roll)
    return turned


def from_quaternion(xyzw: Array) -> Array:
    """Return the matrix of a unit quaternion."""
    x, y, z, w = (float(v) for v in xyzw)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def to_quaternion(rotation: Array) -> Array:
    """Return the unit quaternion xyzw of a rotation matrix, with the part that is greatest made positive."""
    r = np.asarray(rotation)
    # the four squares x4, by which the best-conditioned row is chosen (Shepperd's method)
    squares = np.array(
        [
            1 + r[0, 0] - r[1, 1] - r[2, 2],
            1 - r[0, 0] + r[1, 1] - r[2, 2],
            1 - r[0, 0] - r[1, 1] + r[2, 2],
            1 + r.trace(),
        ]
    )
    s, d = r + r.T, r - r.T
    rows = [
        (squares[0], s[0, 1], s[0, 2], d[2, 1]),
        (s[0, 1], squares[1], s[1, 2], d[0, 2]),
        (s[0, 2], s[1, 2], squares[2], d[1, 0]),
        (d[2, 1], d[0, 2], d[1, 0], squares[3]),
    ]
    best = np.array(rows[int(squares.argmax())])
    unit: Array = best / np.linalg.norm(best)
    return unit
