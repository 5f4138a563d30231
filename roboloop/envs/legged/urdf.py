"""A robot of ours as a URDF, which is how Bullet is told of it."""

from __future__ import annotations

from collections.abc import Iterable

from roboloop.envs.legged.model import ORIGIN, Joint, Link, RobotModel, Shape, Vec3

ROOT_SLIDES = ("root_x", "root_z", "root_pitch")
"""Joints of a planar root, from the world to the root link."""


def _numbers(values: Iterable[float]) -> str:
    return " ".join(repr(float(v)) for v in values)


def _inertial(mass_kg: float, com_m: Vec3, inertia: Vec3) -> str:
    xx, yy, zz = inertia
    return (
        f'<inertial><origin xyz="{_numbers(com_m)}"/><mass value="{mass_kg!r}"/>'
        f'<inertia ixx="{xx!r}" ixy="0" ixz="0" iyy="{yy!r}" iyz="0" izz="{zz!r}"/></inertial>'
    )


def _collision(shape: Shape) -> str:
    if shape.kind == "capsule":
        geometry = f'<capsule radius="{shape.size[0]!r}" length="{shape.size[1]!r}"/>'
    elif shape.kind == "box":
        geometry = f'<box size="{_numbers(shape.size)}"/>'
    else:
        geometry = f'<sphere radius="{shape.size[0]!r}"/>'
    origin = f'<origin xyz="{_numbers(shape.at_m)}" rpy="{_numbers(shape.rpy_rad)}"/>'
    return f"<collision>{origin}<geometry>{geometry}</geometry></collision>"


def _link(link: Link) -> str:
    inside = _inertial(link.mass_kg, link.com_m, link.inertia_kg_m2) + "".join(map(_collision, link.shapes))
    return f'<link name="{link.name}">{inside}</link>'


def _hinge(link: Link, joint: Joint) -> str:
    low, high = joint.limits_rad
    return (
        f'<joint name="{joint.name}" type="revolute"><parent link="{link.parent}"/><child link="{link.name}"/>'
        f'<origin xyz="{_numbers(joint.at_m)}"/><axis xyz="{_numbers(joint.axis)}"/>'
        f'<limit lower="{low!r}" upper="{high!r}" effort="{joint.torque_nm!r}" velocity="1000"/>'
        f'<dynamics damping="{joint.damping!r}" friction="0"/></joint>'
    )


def _planar_root(root: str) -> str:
    """Return massless links that slide along x and z, and the hinge about y that the root hangs on."""
    names = ("world", "slide_x", "slide_z", root)
    axes, kinds = ("1 0 0", "0 0 1", "0 1 0"), ("prismatic", "prismatic", "continuous")
    links = [f'<link name="{name}">{_inertial(0.0, ORIGIN, ORIGIN)}</link>' for name in names[:3]]
    joints = [
        f'<joint name="{name}" type="{kind}"><parent link="{names[i]}"/><child link="{names[i + 1]}"/>'
        # a lower limit above the upper one is none
        f'<axis xyz="{axis}"/><limit lower="1" upper="-1" effort="0" velocity="1000"/></joint>'
        for i, (name, axis, kind) in enumerate(zip(ROOT_SLIDES, axes, kinds, strict=True))
    ]
    return "\n".join(links + joints)


def to_urdf(model: RobotModel) -> str:
    """Return the robot's description."""
    parts = [_planar_root(model.links[0].name)] if model.root == "planar" else []
    parts += [_link(link) for link in model.links]
    parts += [_hinge(link, link.joint) for link in model.links if link.joint is not None]
    lines = "\n".join(parts)  # Bullet reads no longer lines than it likes
    return f'<?xml version="1.0"?>\n<robot name="{model.name}">\n{lines}\n</robot>\n'
