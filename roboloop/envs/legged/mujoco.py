"""A legged robot in MuJoCo.

A contact's stiffness and damping become MuJoCo's through the compliance that it computes with (``invweight0``), up to
what one substep can take. Restitution is not known here: what bounces does so by stiffness alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.engine import Contact, LinkReport, Mattress
from roboloop.envs.legged.model import (
    GRAVITY_M_S2,
    SUBSTEP_S,
    Link,
    RobotModel,
    Shape,
    from_quaternion,
    from_rpy,
    to_quaternion,
)

IMPEDANCE, MOST_IMPEDANCE = 0.25, 0.99
"""Share d of a contact's target acceleration that is enforced (solimp). The less, the more a contact is a plain spring
and damper; the more, the stiffer one can be without trembling."""
FRICTION_STIFFNESS = 100
"""How much less compliant friction is than a contact's normal force (impratio): feet that stick shall not creep."""


class MujocoEngine:
    """One robot in a model of its own."""

    def __init__(self, model: RobotModel, contact: Contact, mattress: Mattress | None = None) -> None:
        assert mattress is None
        self._robot = model
        self._m = mujoco.MjModel.from_xml_string(_to_mjcf(model))
        self._d = mujoco.MjData(self._m)
        self._links = [self._m.body(link.name).id for link in model.links]
        self._feet = [self._m.site(f"{model.links[i].name}_foot").id for i in model.feet]
        self._foot_bodies = [self._links[i] for i in model.feet]
        touching = self._m.geom_bodyid[self._m.pair_geom2]  # the robot's side of each pair with the floor
        self._foot_pairs = [np.flatnonzero(touching == body) for body in self._foot_bodies]
        self._contacts: tuple[Contact, ...] = ()
        self._touch(np.arange(self._m.npair), contact)
        self.set_contact((contact,) * len(self._feet))

    def _touch(self, pairs: Array, contact: Contact) -> None:
        """Write a contact: its force is -(k r + b v + a) / R with R = (1 - d) / d * invweight.

        The impedance d is the least with which one substep can take k and b.
        """
        m, stiffness, damping = self._m, contact.stiffness_n_m, contact.damping_ns_m
        m.pair_friction[pairs, :2], m.pair_friction[pairs, 2] = contact.friction, contact.spinning_friction
        most = min(0.25 / SUBSTEP_S**2 / max(stiffness, 1e-9), 1 / SUBSTEP_S / max(damping, 1e-9))
        for pair in pairs:
            weight = m.body_invweight0[m.geom_bodyid[m.pair_geom2[pair]], 0]
            d = min(weight / (weight + min((1 - IMPEDANCE) / IMPEDANCE * weight, most)), MOST_IMPEDANCE)
            compliance = min((1 - d) / d * weight, most)
            m.pair_solimp[pair, :2] = d
            # MuJoCo divides by d what is negative here, and multiplies k by d once more
            m.pair_solref[pair] = -stiffness * compliance * d, -damping * compliance * d
            m.pair_solreffriction[pair] = -1e-9, -d / SUBSTEP_S

    def set_contact(self, contacts: Sequence[Contact]) -> None:
        """Write each foot's friction, stiffness and damping; restitution is not known here."""
        before = self._contacts or (None,) * len(self._feet)
        for pairs, contact, old in zip(self._foot_pairs, contacts, before, strict=True):
            if contact != old:
                self._touch(pairs, contact)
        self._contacts = tuple(contacts)

    def set_model(self, model: RobotModel) -> None:
        """Take masses, inertias and joint damping."""
        m = self._m
        m.body_mass[self._links] = [link.mass_kg for link in model.links]
        m.body_inertia[self._links] = [link.inertia_kg_m2 for link in model.links]
        m.dof_damping[self._robot.root_dq :] = [joint.damping for joint in model.joints]
        mujoco.mj_setConst(m, self._d)
        self._contacts = ()  # which depend on the robot's inertia

    def reset(self, q: Array, dq: Array) -> None:
        """Forget all and place the robot."""
        d = self._d
        mujoco.mj_resetData(self._m, d)
        d.qpos, d.qvel = q, dq
        if self._robot.root == "free":
            d.qpos[3:7] = q[[6, 3, 4, 5]]
            d.qvel[3:6] = from_quaternion(q[3:7]).T @ dq[3:6]  # MuJoCo's angular velocity is in the body's axes
        mujoco.mj_forward(self._m, d)
        d.qacc_warmstart[:] = 0

    def step(self, torque_nm: Array, substeps: int = 1) -> None:
        """Set the torques, which stay, and step."""
        d = self._d
        d.qfrc_applied[self._robot.root_dq :] = torque_nm
        mujoco.mj_step(self._m, d, nstep=substeps)
        d.xfrc_applied[:] = 0

    def push(self, force_n: Array) -> None:
        """Apply the forces at the feet; a force beside the centre of mass is also a torque."""
        d = self._d
        for body, site, force in zip(self._foot_bodies, self._feet, force_n, strict=True):
            d.xfrc_applied[body, :3] = force
            d.xfrc_applied[body, 3:] = np.cross(d.site_xpos[site] - d.xipos[body], force)

    def read(self) -> tuple[Array, Array]:
        """Return q and dq."""
        q, dq = self._d.qpos.copy(), self._d.qvel.copy()
        if self._robot.root == "free":
            q[3:7] = q[[4, 5, 6, 3]]
            dq[3:6] = from_quaternion(q[3:7]) @ dq[3:6]
        return q, dq

    def feet(self) -> Array:
        """Return where the feet are; positions are brought up to date, since a step leaves them one behind."""
        mujoco.mj_kinematics(self._m, self._d)
        return np.array(self._d.site_xpos[self._feet])

    def report(self) -> LinkReport:
        """Ask MuJoCo for poses, masses, inertias, limits and damping."""
        m, d = self._m, self._d
        mujoco.mj_kinematics(m, d)
        mujoco.mj_comPos(m, d)
        first = 1 if self._robot.root == "free" else 3
        return LinkReport(
            position_m=d.xpos[self._links].copy(),
            rotation=d.xmat[self._links].reshape(-1, 3, 3).copy(),
            com_m=d.xipos[self._links].copy(),
            mass_kg=m.body_mass[self._links].copy(),
            inertia_kg_m2=m.body_inertia[self._links].copy(),
            limits_rad=m.jnt_range[first:].T.copy(),
            damping=m.dof_damping[self._robot.root_dq :].copy(),
        )

    def close(self) -> None:
        """Hold nothing."""


def _text(values: Sequence[float]) -> str:
    return " ".join(repr(float(v)) for v in values)


def _geom(shape: Shape, name: str) -> str:
    x, y, z, w = to_quaternion(from_rpy(shape.rpy_rad))
    sizes = {"capsule": (shape.size[0], shape.size[-1] / 2), "sphere": shape.size}
    size = sizes.get(shape.kind, tuple(side / 2 for side in shape.size))
    return (
        f'<geom name="{name}" type="{shape.kind}" size="{_text(size)}" pos="{_text(shape.at_m)}"'
        f' quat="{_text((w, x, y, z))}"/>'
    )


def _body(model: RobotModel, number: int) -> str:
    """Return a link with everything below it."""
    link = model.links[number]
    parts = [_inertial(link), _joints(model, link)]
    parts += [_geom(shape, f"{link.name}_{i}") for i, shape in enumerate(link.shapes)]
    if link.foot_m is not None:
        parts.append(f'<site name="{link.name}_foot" pos="{_text(link.foot_m)}"/>')
    parts += [_body(model, child) for child, parent in enumerate(model.parents) if parent == number]
    at = link.joint.at_m if link.joint else (0.0, 0.0, 0.0)
    return f'<body name="{link.name}" pos="{_text(at)}">{"".join(parts)}</body>'


def _inertial(link: Link) -> str:
    inertia = _text(link.inertia_kg_m2)
    return f'<inertial pos="{_text(link.com_m)}" mass="{link.mass_kg!r}" diaginertia="{inertia}"/>'


def _joints(model: RobotModel, link: Link) -> str:
    if link.joint is not None:
        joint = link.joint
        return (
            f'<joint name="{joint.name}" type="hinge" axis="{_text(joint.axis)}" damping="{joint.damping!r}"'
            f' range="{_text(joint.limits_rad)}"/>'
        )
    if model.root == "free":
        return "<freejoint/>"
    return (
        '<joint name="root_x" type="slide" axis="1 0 0"/><joint name="root_z" type="slide" axis="0 0 1"/>'
        '<joint name="root_pitch" type="hinge" axis="0 1 0"/>'
    )


def _to_mjcf(model: RobotModel) -> str:
    """Return the scene; shapes meet the floor in pairs, which alone can have friction stiffer than the contact."""
    condim = 3 if model.root == "planar" else 4  # what cannot turn about z has no use for torsional friction
    pairs = "".join(
        f'<pair geom1="floor" geom2="{link.name}_{i}"/>' for link in model.links for i in range(len(link.shapes))
    )
    return f"""
<mujoco model="{model.name}">
  <compiler angle="radian" inertiafromgeom="false" balanceinertia="false"/>
  <option timestep="{SUBSTEP_S}" gravity="0 0 {GRAVITY_M_S2}" integrator="Euler" cone="elliptic"
    impratio="{FRICTION_STIFFNESS}"/>
  <default>
    <pair condim="{condim}" solimp="{IMPEDANCE} {IMPEDANCE} 0.001"/>
    <joint armature="0" limited="auto" solreflimit="0.005 1"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 10" contype="0" conaffinity="0"/>
    {_body(model, 0)}
  </worldbody>
  <contact>{pairs}</contact>
</mujoco>"""
