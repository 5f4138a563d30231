"""Tables of two quadrupeds, x forwards, y to the left, z up; legs in the order FR, FL, RR, RL, each hip, upper, lower.

Masses, centres of mass, joints and limits are those of ``laikago_toes_limits.urdf`` and ``a1.urdf`` in pybullet_data,
the first turned so that z is up. Toes are part of the lower legs. Laikago's meshes are replaced by primitives; its
inertias, which the file leaves at zero, are those of the boxes around the meshes, as Bullet takes them. Products of
inertia are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.model import Joint, Link, RobotModel, Shape, Vec3

LEGS = ("FR", "FL", "RR", "RL")


@dataclass(frozen=True)
class Mass:
    """A mass with its centre and its inertia about it."""

    kg: float
    at_m: Vec3
    inertia_kg_m2: Vec3


@dataclass(frozen=True)
class LegTable:
    """A leg of the right side; the left one is its mirror image."""

    hip_at_m: tuple[float, float]
    """Forwards at the front, backwards at the rear (both from the middle), as x of the joint."""
    hip_y_m: float
    upper_y_m: tuple[float, float]
    """On the right and on the left: one file has them unequal."""
    lower_at_m: Vec3
    """The knee, seen from the hip, on the right."""
    toe_m: Vec3
    toe_radius_m: float
    hip_axis_right: Vec3
    """Of a right hip; a left one's is the same or the opposite."""
    hip_axis_left: Vec3
    masses: tuple[Mass, Mass, Mass, Mass]
    """Hip, upper, lower, toe; on the right, at the front."""
    hip_turns_with_end: bool
    """Whether a rear hip's centre of mass is mirrored front to back."""
    limits_rad: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    hip_radius_m: float
    upper: Shape
    lower: Shape
    damping: float
    torque_nm: float


def box_inertia(kg: float, lengths_m: Vec3) -> Vec3:
    """Return the inertia of a box about its middle."""
    x, y, z = (kg / 12 * length**2 for length in lengths_m)
    return y + z, x + z, x + y


def joined(a: Mass, b: Mass) -> Mass:
    """Return two masses as one, without products of inertia (Steiner)."""
    kg = a.kg + b.kg
    first, second = np.array(a.at_m), np.array(b.at_m)
    centre = (a.kg * first + b.kg * second) / kg
    squares = (second - first) ** 2 * (a.kg * b.kg / kg)
    inertia = np.array(a.inertia_kg_m2) + b.inertia_kg_m2 + squares.sum() - squares
    return Mass(kg, _vec(centre), _vec(inertia))


def _vec(values: Array) -> Vec3:
    x, y, z = (float(v) for v in values)
    return x, y, z


def _mirrored(at_m: Vec3, side: float) -> Vec3:
    """Return a place on the right (side -1) or on the left (side 1) that is given for the right."""
    return at_m[0], -side * at_m[1], at_m[2]


def _shape(shape: Shape, side: float) -> Shape:
    return Shape(shape.kind, shape.size, _mirrored(shape.at_m, side), shape.rpy_rad)


def leg(name: str, root: str, table: LegTable) -> tuple[Link, Link, Link]:
    """Return the three links of a leg."""
    side, is_front = (1.0 if name[1] == "L" else -1.0), name[0] == "F"
    hip, upper, lower, toe = table.masses
    shin = joined(lower, toe)
    hip_com = _mirrored(hip.at_m, side)
    if table.hip_turns_with_end and not is_front:
        hip_com = (-hip_com[0], hip_com[1], hip_com[2])
    places: tuple[Vec3, Vec3, Vec3] = (
        (table.hip_at_m[0 if is_front else 1], side * table.hip_y_m, 0.0),
        (0.0, table.upper_y_m[0] if side < 0 else table.upper_y_m[1], 0.0),
        _mirrored(table.lower_at_m, side),
    )
    axes = (table.hip_axis_left if side > 0 else table.hip_axis_right, (0.0, 1.0, 0.0), (0.0, 1.0, 0.0))
    names = [f"{name}_{part}" for part in ("hip", "upper", "lower")]
    joints = [
        Joint(joint, axis, at_m, limits, table.damping, table.torque_nm)
        for joint, axis, at_m, limits in zip(names, axes, places, table.limits_rad, strict=True)
    ]
    toe_m = _mirrored(table.toe_m, side)
    ball = Shape("sphere", (table.hip_radius_m,))
    sole = Shape("sphere", (table.toe_radius_m,), toe_m)
    return (
        Link(names[0], root, joints[0], hip.kg, hip_com, hip.inertia_kg_m2, (ball,)),
        Link(
            names[1],
            names[0],
            joints[1],
            upper.kg,
            _mirrored(upper.at_m, side),
            upper.inertia_kg_m2,
            (_shape(table.upper, side),),
        ),
        Link(
            names[2],
            names[1],
            joints[2],
            shin.kg,
            _mirrored(shin.at_m, side),
            shin.inertia_kg_m2,
            (_shape(table.lower, side), sole),
            foot_m=toe_m,
        ),
    )


def quadruped(name: str, trunk: Link, table: LegTable) -> RobotModel:
    """Return a trunk with four legs."""
    links = [link for each in LEGS for link in leg(each, trunk.name, table)]
    return RobotModel(name, "free", (trunk, *links))


LAIKAGO_LEG = LegTable(
    hip_at_m=(0.242889, -0.194401),
    hip_y_m=0.0817145,
    upper_y_m=(-0.053565, 0.055855),
    lower_at_m=(-0.1422, 0.02069, -0.20833),
    toe_m=(-0.022, 0.0, -0.25),
    toe_radius_m=0.03,
    hip_axis_right=(-1.0, 0.0, 0.0),
    hip_axis_left=(1.0, 0.0, 0.0),
    masses=(
        Mass(1.095, (0.0, 0.02, 0.0), box_inertia(1.095, (0.104, 0.0884, 0.0903))),
        Mass(1.527, (-0.04, 0.0, -0.04), box_inertia(1.527, (0.2206, 0.0978, 0.2707))),
        Mass(0.241, (-0.02, 0.0, -0.16), box_inertia(0.241, (0.0695, 0.035, 0.3224))),
        Mass(0.1, (-0.022, 0.0, -0.25), (0.000036, 0.000036, 0.000036)),
    ),
    hip_turns_with_end=False,
    limits_rad=((-0.873, 1.0472), (-1.3, 3.4), (-2.164, 0.0)),
    hip_radius_m=0.045,
    upper=Shape("capsule", (0.035, 0.2), (-0.0711, 0.0103, -0.1042), (0.0, math.atan2(0.1422, 0.20833), 0.0)),
    lower=Shape("capsule", (0.0175, 0.2), (-0.011, 0.0, -0.115), (0.0, math.atan2(0.022, 0.25), 0.0)),
    damping=0.5,
    torque_nm=30.0,
)

LAIKAGO = quadruped(
    "laikago",
    Link(
        "chassis",
        "",
        None,
        13.715,
        (0.043794, 0.0, 0.03),
        box_inertia(13.715, (0.5848, 0.3952, 0.1968)),
        # narrower than the mesh's box, which would reach into the upper legs
        (Shape("box", (0.585, 0.16, 0.19), (0.031, 0.0, 0.014)),),
    ),
    LAIKAGO_LEG,
)

A1_LEG = LegTable(
    hip_at_m=(0.183, -0.183),
    hip_y_m=0.047,
    upper_y_m=(-0.08505, 0.08505),
    lower_at_m=(0.0, 0.0, -0.2),
    toe_m=(0.0, 0.0, -0.2),
    toe_radius_m=0.02,
    hip_axis_right=(1.0, 0.0, 0.0),
    hip_axis_left=(1.0, 0.0, 0.0),
    masses=(
        Mass(0.697, (-0.003311, -0.000635, 0.000031), (0.000469246, 0.00080749, 0.000552929)),
        Mass(1.013, (-0.003237, 0.022327, -0.027326), (0.005529065, 0.005139339, 0.001367788)),
        Mass(0.166, (0.006435, 0.0, -0.107388), (0.002997972, 0.003014022, 0.000032426)),
        Mass(0.06, (0.0, 0.0, -0.2), (0.0000096, 0.0000096, 0.0000096)),
    ),
    hip_turns_with_end=True,
    limits_rad=(
        (-0.802851455917, 0.802851455917),
        (-1.0471975512, 4.18879020479),
        (-2.69653369433, -0.916297857297),
    ),
    hip_radius_m=0.04,
    upper=Shape("box", (0.034, 0.0245, 0.2), (0.0, 0.0, -0.1)),
    lower=Shape("box", (0.016, 0.016, 0.2), (0.0, 0.0, -0.1)),
    damping=0.2,
    torque_nm=20.0,
)

A1 = quadruped(
    "a1",
    Link(
        "trunk",
        "",
        None,
        4.714,
        (0.012731, 0.002186, 0.000515),
        (0.01683993, 0.056579028, 0.064713601),
        (Shape("box", (0.267, 0.194, 0.114)),),
    ),
    A1_LEG,
)
