"""The Panda and its scenes as MuJoCo models: pybullet_data's arm, the controller as actuators, simple objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mujoco
import pybullet_data

from roboloop.envs.panda.tasks import DOWN, FINGER_SPEED_M_S, GAINS, OPEN_WIDTH_M, RATE_HZ, PandaTask

ARM_JOINTS = tuple(f"panda_joint{i}" for i in range(1, 8))
FINGER_JOINTS = ("panda_finger_joint1", "panda_finger_joint2")
FINGER_M = OPEN_WIDTH_M / 2
LINK_RADIUS_M = 0.07
"""Radius of gyration of a link: the URDF's inertia of 0.1 kg m² for each, fingers included, is a placeholder."""
POST_RADIUS_M, POST_HALF_HEIGHT_M = 0.01, 0.03
PUCK_RADIUS_M = 0.035
FINGERS_HALF_M = (0.01, 0.008, 0.018)
"""Half sizes of a finger's box; the mesh is for the eye."""
HAND, TARGET, GOAL = "panda_hand", "target", "goal"
EE = "ee"
_GREY, _RED, _GREEN, _WOOD = (0.6, 0.6, 0.62, 1), (0.8, 0.2, 0.15, 1), (0.2, 0.7, 0.3, 0.6), (0.65, 0.5, 0.35, 1)
_SOLID, _SEEN = {"contype": 1, "conaffinity": 1}, {"contype": 0, "conaffinity": 0}
_TYPES = mujoco.mjtGeom


def _urdf() -> Any:
    """Return the arm as MuJoCo's spec; MuJoCo wants its settings inside the URDF."""
    directory = Path(pybullet_data.__file__).parent / "franka_panda"
    settings = f'meshdir="{directory}" strippath="false" balanceinertia="true" discardvisual="true" fusestatic="false"'
    text = (directory / "panda.urdf").read_text().replace("package://", "")
    # all collision meshes are unnamed, and MuJoCo would warn of each: they are named by their files
    text = re.sub(r"<collision>(?=(?:(?!</collision>).)*?/(\w+)\.obj)", r'<collision name="\1">', text, flags=re.S)
    text = text.replace('<collision name="finger">', "<collision>", 1)
    text = re.sub(r"<robot([^>]*)>", rf"<robot\1><mujoco><compiler {settings}/></mujoco>", text, count=1)
    spec = mujoco.MjSpec.from_string(text)
    spec.compiler.discardvisual = False  # from here on, what does not touch is for the eye
    return spec


def build(task: PandaTask) -> Any:
    """Return the compiled model of a task's scene."""
    spec = _urdf()
    option = spec.option
    option.timestep = 1 / RATE_HZ
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.iterations, option.ls_iterations = 20, 10
    _prepare_arm(spec)
    _add_fingers(spec)
    world = spec.worldbody
    world.add_geom(type=_TYPES.mjGEOM_PLANE, size=[2, 2, 0.1], rgba=_GREY, **_SEEN)
    world.add_light(pos=[0.3, -0.6, 2.0], dir=[0, 0.3, -1])
    _add_controller(spec)
    if task.goal is not None:
        goal = world.add_body(name=GOAL, mocap=True)
        goal.add_geom(type=_TYPES.mjGEOM_SPHERE, size=[task.success_m] * 3, rgba=_GREEN, **_SEEN)
    if task.puck is not None:
        _add_puck(spec)
    if task.closes:
        _add_furniture(spec, task)
    return spec.compile()


def _prepare_arm(spec: Any) -> None:
    """Compensate gravity, give links and rotors their inertia, and let only hand and fingers touch things."""
    for body in spec.bodies:
        body.gravcomp = 1.0
        if body.mass > 0:
            body.fullinertia = [body.mass * LINK_RADIUS_M**2] * 3 + [0.0] * 3
        for geom in body.geoms:
            geom.contype = geom.conaffinity = 0
            geom.rgba = (0.92, 0.92, 0.94, 1)
    for joint in spec.joints:
        arm = joint.name in ARM_JOINTS
        joint.armature, joint.damping = (0.1, 0.5) if arm else (0.05, 5.0)


def _add_fingers(spec: Any) -> None:
    hand = spec.body(HAND)
    hand.add_geom(type=_TYPES.mjGEOM_BOX, size=[0.03, 0.1, 0.03], pos=[0, 0, 0.03], rgba=(0, 0, 0, 0), **_SOLID)
    hand.add_site(name=EE, pos=[0, 0, 0.105])
    for name, side in (("panda_leftfinger", 1), ("panda_rightfinger", -1)):
        spec.body(name).add_geom(
            type=_TYPES.mjGEOM_BOX, size=FINGERS_HALF_M, pos=[0, side * FINGERS_HALF_M[1], 0.036],
            friction=[1.0, 0.01, 0.0001], rgba=(0, 0, 0, 0), **_SOLID,
        )  # fmt: skip
    spec.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT, name1=FINGER_JOINTS[1], name2=FINGER_JOINTS[0], data=[0, 1] + [0] * 9,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
    )  # fmt: skip


def _add_controller(spec: Any) -> None:
    """Add the impedance controller as actuators, so that a thousand ticks are one call into MuJoCo.

    Six springs pull the hand's site to that of a target body (J^T Kx), seven pull the joints to their own target (Kq).
    """
    spec.worldbody.add_body(name=TARGET, mocap=True, quat=DOWN).add_site(name=TARGET)
    for axis in range(6):
        gear = [0.0] * 6
        gear[axis] = 1.0
        kp, kd = GAINS.kx[axis // 3], GAINS.kxd[axis // 3]
        _servo(spec, f"cartesian{axis}", kp, kd, gear, mujoco.mjtTrn.mjTRN_SITE, EE, TARGET)
    for joint, kp, kd in zip(ARM_JOINTS, GAINS.kq, GAINS.kqd, strict=True):
        _servo(spec, joint, kp, kd, [1.0] + [0.0] * 5, mujoco.mjtTrn.mjTRN_JOINT, joint)
    for joint in FINGER_JOINTS:  # control is the speed of the finger's own target, which stays within its way
        finger = _servo(spec, joint, 1500.0, 30.0, [1.0] + [0.0] * 5, mujoco.mjtTrn.mjTRN_JOINT, joint)
        finger.dyntype = mujoco.mjtDyn.mjDYN_INTEGRATOR
        finger.ctrlrange, finger.ctrllimited = [-FINGER_SPEED_M_S, FINGER_SPEED_M_S], True
        finger.actrange, finger.actlimited = [0.0, FINGER_M], True
        finger.forcerange, finger.forcelimited = [-20.0, 20.0], True


def _servo(spec: Any, name: str, kp: float, kd: float, gear: list[float], kind: Any, on: str, ref: str = "") -> Any:
    """Add an actuator with the force kp (control - position) - kd velocity."""
    actuator = spec.add_actuator(name=name, trntype=kind, target=on, refsite=ref, gear=gear)
    actuator.gaintype, actuator.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_AFFINE
    actuator.gainprm[0] = kp
    actuator.biasprm[1], actuator.biasprm[2] = -kp, -kd
    return actuator


def _add_puck(spec: Any) -> None:
    """Add a puck that slides and turns on the table; friction with the table is that of its joints."""
    puck = spec.worldbody.add_body(name="puck", pos=[0, 0, 0.03])
    for name, axis in (("puck_x", [1, 0, 0]), ("puck_y", [0, 1, 0])):
        puck.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis, frictionloss=1.0, damping=4.0)
    puck.add_joint(name="puck_yaw", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0, 0, 1], frictionloss=0.01, damping=0.01)
    puck.add_geom(
        type=_TYPES.mjGEOM_CYLINDER, size=[PUCK_RADIUS_M, 0.03, 0], mass=0.3, friction=[0.3, 0.01, 0.0001], rgba=_RED,
        **_SOLID,
    )  # fmt: skip


def _add_furniture(spec: Any, task: PandaTask) -> None:
    """Add a drawer or a door; a post on top of its front is the handle, all else is lower than the fingers."""
    x, y, z = task.handle
    top = z - POST_HALF_HEIGHT_M
    body = spec.worldbody.add_body(name="front", pos=[x, y, 0])
    if task.hinge is None:
        body.add_joint(
            name="opening", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[-1, 0, 0], range=[0, 0.25], limited=True,
            frictionloss=1.0, damping=10.0,
        )  # fmt: skip
        body.add_geom(
            type=_TYPES.mjGEOM_BOX, size=[0.12, 0.15, top / 2], pos=[0.12, 0, top / 2], mass=1.0, rgba=_WOOD, **_SEEN
        )
    else:
        away = y - task.hinge[1]
        body.add_joint(
            name="opening", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0, 0, 1], pos=[0, -away, 0], range=[0, 1.5],
            limited=True, frictionloss=0.1, damping=0.4,
        )  # fmt: skip
        size = [0.01, away / 2 + 0.01, top / 2]
        body.add_geom(type=_TYPES.mjGEOM_BOX, size=size, pos=[0, -away / 2, top / 2], mass=1.0, rgba=_WOOD, **_SEEN)
    body.add_geom(
        type=_TYPES.mjGEOM_CYLINDER, size=[POST_RADIUS_M, POST_HALF_HEIGHT_M, 0], pos=[0, 0, z], mass=0.1,
        friction=[1.0, 0.01, 0.0001], rgba=_RED, **_SOLID,
    )  # fmt: skip
    body.add_site(name="handle", pos=[0, 0, z])
