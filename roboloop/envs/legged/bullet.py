"""A legged robot in PyBullet.

What Bullet adds by itself is turned off: joint motors, link damping, a cap on joint speeds. Its TORQUE_CONTROL adds
up over calls, so that torques are set once per substep and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.engine import Contact, LinkReport, Mattress
from roboloop.envs.legged.model import GRAVITY_M_S2, SUBSTEP_S, RobotModel, from_quaternion
from roboloop.envs.legged.urdf import ROOT_SLIDES, to_urdf

FLOOR_M = (300.0, 40.0, 10.0)
SOLVER_ITERATIONS = 100
MAX_SPEED = 1e4


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the C library's chatter off the terminal."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


@cache
def _pybullet() -> Any:
    with _silence():
        import pybullet
    return pybullet


class BulletEngine:
    """One robot in a client of its own."""

    def __init__(self, model: RobotModel, contact: Contact, mattress: Mattress | None = None) -> None:
        self._p = _pybullet()
        self._client = self._p.connect(self._p.DIRECT)
        self._model, self._contact, self._mattress = model, contact, mattress
        self._contacts: tuple[Contact, ...] = ()
        self._dynamics = model
        self._push: Array | None = None
        self._build()

    def _build(self) -> None:
        """Make floor and robot from nothing."""
        p, client = self._p, self._client
        p.resetSimulation(p.RESET_USE_DEFORMABLE_WORLD if self._mattress else 0, physicsClientId=client)
        p.setPhysicsEngineParameter(
            fixedTimeStep=SUBSTEP_S,
            numSolverIterations=SOLVER_ITERATIONS,
            deterministicOverlappingPairs=1,
            physicsClientId=client,
        )
        p.setGravity(0, 0, GRAVITY_M_S2, physicsClientId=client)
        if self._mattress is None:
            self._add_floor(0.0)
        else:
            self._add_mattress(self._mattress)
        self._robot = self._add_robot()
        self._number_joints()
        self._calm()
        self._set_dynamics(self._dynamics)
        everywhere = [-1, *range(p.getNumJoints(self._robot, physicsClientId=client))]
        for link in everywhere:
            self._touch(self._robot, link, self._contact)
        contacts = self._contacts or (self._contact,) * len(self._model.feet)
        self._contacts = ()
        self.set_contact(contacts)
        self._saved = None if self._mattress else p.saveState(physicsClientId=client)

    def _add_floor(self, top_m: float, friction: float = 1.0) -> None:
        """Add a box whose own contact is neutral: friction and restitution multiply, damping adds up."""
        p, client = self._p, self._client
        half = [side / 2 for side in FLOOR_M]
        shape = p.createCollisionShape(p.GEOM_BOX, halfExtents=half, physicsClientId=client)
        floor = p.createMultiBody(0, shape, basePosition=[0, 0, top_m - half[2]], physicsClientId=client)
        p.changeDynamics(
            floor,
            -1,
            lateralFriction=friction,
            spinningFriction=0,
            restitution=1,
            contactStiffness=1e18,
            contactDamping=0,
            physicsClientId=client,
        )

    def _add_mattress(self, mattress: Mattress) -> None:
        """Add a cube of eight vertices, 20 m long, on a floor that holds it."""
        p = self._p
        self._add_floor(mattress.top_m - MATTRESS_M[2], friction=100)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "mattress.obj"
            path.write_text(_mattress_obj())
            p.loadSoftBody(
                str(path),
                basePosition=[MATTRESS_M[0] / 2 - 3, 0, mattress.top_m - MATTRESS_M[2] / 2],
                mass=mattress.mass_kg,
                useNeoHookean=int(mattress.neo_hookean),
                useBendingSprings=1,
                useMassSpring=1,
                springElasticStiffness=mattress.stiffness,
                springDampingStiffness=mattress.damping,
                springDampingAllDirections=1,
                frictionCoeff=mattress.friction,
                useFaceContact=1,
                physicsClientId=self._client,
            )

    def _add_robot(self) -> int:
        p = self._p
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "robot.urdf"
            path.write_text(to_urdf(self._model))
            flags = p.URDF_USE_SELF_COLLISION | p.URDF_USE_INERTIA_FROM_FILE
            fixed = self._model.root == "planar"
            return int(p.loadURDF(str(path), useFixedBase=fixed, flags=flags, physicsClientId=self._client))

    def _number_joints(self) -> None:
        """Find Bullet's numbers for our links and joints; a link has the number of the joint above it."""
        p, robot, client = self._p, self._robot, self._client
        count = p.getNumJoints(robot, physicsClientId=client)
        infos = [p.getJointInfo(robot, i, physicsClientId=client) for i in range(count)]
        joints = {info[1].decode(): i for i, info in enumerate(infos)}
        links = {info[12].decode(): i for i, info in enumerate(infos)}
        self._links = [links.get(link.name, -1) for link in self._model.links]
        self._motors = [joints[joint.name] for joint in self._model.joints]
        planar = self._model.root == "planar"
        self._all = [*(joints[name] for name in ROOT_SLIDES), *self._motors] if planar else self._motors
        self._feet = [self._links[i] for i in self._model.feet]

    def _calm(self) -> None:
        """Turn off what Bullet adds by itself."""
        p, robot, client = self._p, self._robot, self._client
        for link in [-1, *range(p.getNumJoints(robot, physicsClientId=client))]:
            p.changeDynamics(robot, link, linearDamping=0, angularDamping=0, physicsClientId=client)
            if link >= 0:
                p.changeDynamics(robot, link, maxJointVelocity=MAX_SPEED, physicsClientId=client)
        p.setJointMotorControlArray(
            robot, self._all, p.VELOCITY_CONTROL, forces=[0.0] * len(self._all), physicsClientId=client
        )

    def _touch(self, body: int, link: int, contact: Contact) -> None:
        self._p.changeDynamics(
            body,
            link,
            lateralFriction=contact.friction,
            spinningFriction=contact.spinning_friction,
            restitution=contact.restitution,
            contactStiffness=contact.stiffness_n_m,
            contactDamping=contact.damping_ns_m,
            physicsClientId=self._client,
        )

    def set_contact(self, contacts: Sequence[Contact]) -> None:
        """Tell Bullet of each foot whose contact is another one than before."""
        before = self._contacts or (None,) * len(self._feet)
        for foot, contact, old in zip(self._feet, contacts, before, strict=True):
            if contact != old:
                self._touch(self._robot, foot, contact)
        self._contacts = tuple(contacts)

    def set_model(self, model: RobotModel) -> None:
        """Take masses, inertias and joint damping; not centres of mass, which are fixed when a robot is made."""
        self._dynamics = model
        self._set_dynamics(model)

    def _set_dynamics(self, model: RobotModel) -> None:
        for number, link in zip(self._links, model.links, strict=True):
            damping = {} if link.joint is None else {"jointDamping": link.joint.damping}
            self._p.changeDynamics(
                self._robot,
                number,
                mass=link.mass_kg,
                localInertiaDiagonal=link.inertia_kg_m2,
                **damping,
                physicsClientId=self._client,
            )

    def reset(self, q: Array, dq: Array) -> None:
        """Go back to the untouched scene, which has no contacts, and place the robot in it."""
        p, client = self._p, self._client
        self._push = None
        if self._saved is None:
            self._build()  # a deformable floor has a shape of its own, which no saved state holds
        else:
            p.restoreState(self._saved, physicsClientId=client)
        if self._model.root == "free":
            self._reset_base(q, dq)
        first_q, first_dq = (0, 0) if self._model.root == "planar" else (7, 6)
        for joint, angle, speed in zip(self._all, q[first_q:].tolist(), dq[first_dq:].tolist(), strict=True):
            p.resetJointState(self._robot, joint, angle, speed, physicsClientId=client)

    def _reset_base(self, q: Array, dq: Array) -> None:
        """Place a free root; Bullet speaks of its centre of mass."""
        p, client = self._p, self._client
        offset = from_quaternion(q[3:7]) @ self._model.links[0].com_m
        linear = dq[:3] + np.cross(dq[3:6], offset)
        p.resetBasePositionAndOrientation(self._robot, (q[:3] + offset).tolist(), q[3:7].tolist(), client)
        p.resetBaseVelocity(self._robot, linear.tolist(), dq[3:6].tolist(), physicsClientId=client)

    def step(self, torque_nm: Array, substeps: int = 1) -> None:
        """Set the torques once per substep, since a step uses them up."""
        p, robot, client, torques = self._p, self._robot, self._client, torque_nm.tolist()
        for _ in range(substeps):
            p.setJointMotorControlArray(robot, self._motors, p.TORQUE_CONTROL, forces=torques, physicsClientId=client)
            if self._push is not None:
                self._apply_push(self._push)
            p.stepSimulation(physicsClientId=client)
        self._push = None

    def push(self, force_n: Array) -> None:
        """Remember the forces for the next substep."""
        self._push = force_n

    def _apply_push(self, force_n: Array) -> None:
        p = self._p
        for foot, force, at in zip(self._feet, force_n.tolist(), self.feet().tolist(), strict=True):
            p.applyExternalForce(self._robot, foot, force, at, p.WORLD_FRAME, physicsClientId=self._client)

    def read(self) -> tuple[Array, Array]:
        """Return q and dq."""
        p, client = self._p, self._client
        states = p.getJointStates(self._robot, self._all, physicsClientId=client)
        q, dq = np.array([s[0] for s in states]), np.array([s[1] for s in states])
        if self._model.root == "planar":
            return q, dq
        at, quaternion = p.getBasePositionAndOrientation(self._robot, physicsClientId=client)
        linear, angular = p.getBaseVelocity(self._robot, physicsClientId=client)
        offset = from_quaternion(np.array(quaternion)) @ self._model.links[0].com_m
        root_q = [*(np.array(at) - offset), *quaternion]
        return np.array([*root_q, *q]), np.array([*(np.array(linear) - np.cross(angular, offset)), *angular, *dq])

    def feet(self) -> Array:
        """Return where the feet are."""
        model, p = self._model, self._p
        states = p.getLinkStates(self._robot, self._feet, computeForwardKinematics=True, physicsClientId=self._client)
        return np.stack(
            [
                np.array(state[4]) + from_quaternion(np.array(state[5])) @ model.links[i].foot_m
                for i, state in zip(model.feet, states, strict=True)
            ]
        )

    def report(self) -> LinkReport:
        """Ask Bullet for poses, masses, inertias, limits and damping."""
        p, client = self._p, self._client
        q, _ = self.read()
        frames: list[tuple[Array, Array, Array]] = []
        for i, number in enumerate(self._links):
            if number < 0:
                com, _ = p.getBasePositionAndOrientation(self._robot, physicsClientId=client)
                frames.append((q[:3], from_quaternion(q[3:7]), np.array(com)))
                continue
            state = p.getLinkState(self._robot, number, computeForwardKinematics=True, physicsClientId=client)
            frames.append((np.array(state[4]), from_quaternion(np.array(state[5])), np.array(state[0])))
            assert i or self._model.root == "planar"
        facts = [p.getDynamicsInfo(self._robot, number, physicsClientId=client) for number in self._links]
        infos = [p.getJointInfo(self._robot, number, physicsClientId=client) for number in self._motors]
        return LinkReport(
            position_m=np.stack([f[0] for f in frames]),
            rotation=np.stack([f[1] for f in frames]),
            com_m=np.stack([f[2] for f in frames]),
            mass_kg=np.array([f[0] for f in facts]),
            inertia_kg_m2=np.array([f[2] for f in facts]),
            limits_rad=np.array([info[8:10] for info in infos]).T,
            damping=np.array([info[6] for info in infos]),
        )

    def close(self) -> None:
        """Disconnect."""
        if self._client >= 0:
            self._p.disconnect(self._client)
            self._client = -1


MATTRESS_M = (20.0, 20.0, 10.0)


def _mattress_obj() -> str:
    """Return a box of eight vertices as a Wavefront file."""
    x, y, z = (side / 2 for side in MATTRESS_M)
    corners = [(sx * x, sy * y, sz * z) for sz in (-1, 1) for sy in (-1, 1) for sx in (-1, 1)]
    # corners are numbered from 1, x fastest; faces look outwards
    quads = [(1, 3, 4, 2), (5, 6, 8, 7), (1, 2, 6, 5), (3, 7, 8, 4), (1, 5, 7, 3), (2, 4, 8, 6)]
    triangles = [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]
    lines = [f"v {a} {b} {c}" for a, b, c in corners] + [f"f {a} {b} {c}" for a, b, c in triangles]
    return "\n".join(lines) + "\n"
