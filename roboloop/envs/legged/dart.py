"""A legged robot in DART.

DART's contacts are rigid: of a contact it knows friction and restitution, not stiffness, damping or torsional friction.
Bullet's collision detector is used, since the default one (FCL) takes capsules for something else.
"""

from __future__ import annotations

from collections.abc import Sequence

import dartpy as dart
import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.engine import Contact, LinkReport, Mattress
from roboloop.envs.legged.model import (
    GRAVITY_M_S2,
    SUBSTEP_S,
    Joint,
    Link,
    RobotModel,
    Shape,
    from_quaternion,
    from_rpy,
    to_quaternion,
)

DETECTOR = dart.simulation.CollisionDetectorType.BULLET
FLOOR_M = (300.0, 40.0, 10.0)
NEUTRAL_FRICTION = 1e3
"""The floor's own: of two frictions DART takes the smaller, of two restitutions the product."""
ZXP = [1, 0, 2]
"""A planar root's coordinates here are z, x, pitch; the order is its own inverse."""


class DartEngine:
    """One robot in a world of its own."""

    def __init__(self, model: RobotModel, contact: Contact, mattress: Mattress | None = None) -> None:
        assert mattress is None
        self._model, self._dynamics, self._contact = model, model, contact
        self._contacts = (contact,) * len(model.feet)
        self._planar = model.root == "planar"
        self._push: Array | None = None
        self._forces = np.zeros(model.root_dq + model.num_joints)
        self._build()

    def _build(self) -> None:
        """Make floor and robot from nothing."""
        self._world = dart.simulation.World()
        self._world.setTimeStep(SUBSTEP_S)
        self._world.setGravity([0, 0, GRAVITY_M_S2])
        self._world.setCollisionDetector(DETECTOR)
        self._world.addSkeleton(_floor())
        self._robot = dart.dynamics.Skeleton(self._model.name)
        self._bodies: list[dart.dynamics.BodyNode] = []
        self._shapes: list[list[dart.dynamics.ShapeNode]] = []
        for link, parent in zip(self._model.links, self._model.parents, strict=True):
            self._add(link, self._bodies[parent] if parent >= 0 else None)
        self._robot.enableSelfCollisionCheck()
        self._robot.disableAdjacentBodyCheck()
        self._world.addSkeleton(self._robot)
        self._set_dynamics()
        for shapes in self._shapes:
            _touch(shapes, self._contact)
        self._touch_feet(self._contacts)

    def _add(self, link: Link, parent: dart.dynamics.BodyNode | None) -> None:
        if link.joint is not None:
            joint, body = self._robot.createRevoluteJointAndBodyNodePair(parent)
            joint.setAxis(link.joint.axis)
            joint.setTransformFromParentBodyNode(_place(link.joint.at_m, np.eye(3)))
            _limit(joint, link.joint)
        elif self._planar:
            joint, body = self._robot.createPlanarJointAndBodyNodePair(parent)
            joint.setZXPlane()
        else:
            joint, body = self._robot.createFreeJointAndBodyNodePair(parent)
        body.setName(link.name)
        self._bodies.append(body)
        self._shapes.append([_add_shape(body, shape) for shape in link.shapes])

    def _set_dynamics(self) -> None:
        for body, link in zip(self._bodies, self._dynamics.links, strict=True):
            body.setInertia(dart.dynamics.Inertia(link.mass_kg, link.com_m, np.diag(link.inertia_kg_m2)))
            if link.joint is not None:
                body.getParentJoint().setDampingCoefficient(0, link.joint.damping)

    def _touch_feet(self, contacts: Sequence[Contact]) -> None:
        for number, contact in zip(self._model.feet, contacts, strict=True):
            _touch(self._shapes[number], contact)

    def set_contact(self, contacts: Sequence[Contact]) -> None:
        """Set each foot's friction and restitution, all that is known here."""
        if tuple(contacts) != self._contacts:
            self._contacts = tuple(contacts)
            self._touch_feet(contacts)

    def set_model(self, model: RobotModel) -> None:
        """Take masses, inertias and joint damping."""
        self._dynamics = model
        self._set_dynamics()

    def reset(self, q: Array, dq: Array) -> None:
        """Forget forces and contacts, and place the robot; a used detector finds contacts in another order."""
        self._push = None
        self._world.setCollisionDetector(DETECTOR)
        self._world.getConstraintSolver().clearLastCollisionResult()
        self._robot.resetAccelerations()
        self._robot.resetGeneralizedForces()
        self._robot.clearExternalForces()
        self._robot.clearConstraintImpulses()
        if self._planar:
            q, dq = q.copy(), dq.copy()
            q[:3], dq[:3] = q[ZXP], dq[ZXP]
            self._robot.setPositions(q)
            self._robot.setVelocities(dq)
            return
        root = self._robot.getRootJoint()
        turn = from_quaternion(q[3:7])
        root.setPositions(dart.dynamics.FreeJoint.convertToPositions(_place(q[:3], turn)))
        hinges = list(range(6, 6 + self._model.num_joints))
        self._robot.setPositions(hinges, q[7:])
        self._robot.setVelocities(hinges, dq[6:])
        root.setAngularVelocity(dq[3:6])
        root.setLinearVelocity(dq[:3])

    def step(self, torque_nm: Array, substeps: int = 1) -> None:
        """Set the torques once per substep, since a step uses them up."""
        self._forces[self._model.root_dq :] = torque_nm
        for _ in range(substeps):
            self._robot.setForces(self._forces)
            if self._push is not None:
                self._apply_push(self._push)
            self._world.step()
        self._push = None

    def push(self, force_n: Array) -> None:
        """Remember the forces for the next substep."""
        self._push = force_n

    def _apply_push(self, force_n: Array) -> None:
        for number, force in zip(self._model.feet, force_n, strict=True):
            self._bodies[number].addExtForce(force, self._model.links[number].foot_m, False, True)

    def read(self) -> tuple[Array, Array]:
        """Return q and dq."""
        q, dq = self._robot.getPositions(), self._robot.getVelocities()
        if self._planar:
            q[:3], dq[:3] = q[ZXP], dq[ZXP]
            return q, dq
        root = self._bodies[0]
        place = root.getWorldTransform().matrix()
        linear, angular = root.getLinearVelocity(), root.getAngularVelocity()
        return (
            np.concatenate((place[:3, 3], to_quaternion(place[:3, :3]), q[6:])),
            np.concatenate((linear, angular, dq[6:])),
        )

    def feet(self) -> Array:
        """Return where the feet are."""
        places = [self._bodies[i].getWorldTransform().matrix() for i in self._model.feet]
        points = [(*(self._model.links[i].foot_m or ()), 1.0) for i in self._model.feet]
        return np.stack([(place @ point)[:3] for place, point in zip(places, points, strict=True)])

    def report(self) -> LinkReport:
        """Ask DART for poses, masses, inertias, limits and damping."""
        places = [body.getWorldTransform().matrix() for body in self._bodies]
        inertias = [body.getInertia() for body in self._bodies]
        joints = [body.getParentJoint() for body in self._bodies[1:]]
        return LinkReport(
            position_m=np.stack([place[:3, 3] for place in places]),
            rotation=np.stack([place[:3, :3] for place in places]),
            com_m=np.stack([body.getCOM() for body in self._bodies]),
            mass_kg=np.array([body.getMass() for body in self._bodies]),
            inertia_kg_m2=np.array([np.diag(inertia.getMoment()) for inertia in inertias]),
            limits_rad=np.array([[j.getPositionLowerLimit(0), j.getPositionUpperLimit(0)] for j in joints]).T,
            damping=np.array([joint.getDampingCoefficient(0) for joint in joints]),
        )

    def close(self) -> None:
        """Hold nothing."""


def _place(at_m: Sequence[float] | Array, turn: Array) -> dart.math.Isometry3:
    place = dart.math.Isometry3()
    place.set_translation(np.asarray(at_m, float))
    place.set_rotation(turn)
    return place


def _limit(joint: dart.dynamics.RevoluteJoint, said: Joint) -> None:
    joint.setPositionLowerLimit(0, said.limits_rad[0])
    joint.setPositionUpperLimit(0, said.limits_rad[1])
    joint.setLimitEnforcement(True)


def _add_shape(body: dart.dynamics.BodyNode, shape: Shape) -> dart.dynamics.ShapeNode:
    """Add a shape that touches things."""
    made: dart.dynamics.Shape
    if shape.kind == "capsule":
        made = dart.dynamics.CapsuleShape(shape.size[0], shape.size[1])
    elif shape.kind == "box":
        made = dart.dynamics.BoxShape(np.array(shape.size))
    else:
        made = dart.dynamics.SphereShape(shape.size[0])
    node = body.createShapeNode(made)
    node.createCollisionAspect()
    node.createDynamicsAspect()
    node.setRelativeTransform(_place(shape.at_m, from_rpy(shape.rpy_rad)))
    return node


def _touch(shapes: Sequence[dart.dynamics.ShapeNode], contact: Contact) -> None:
    for shape in shapes:
        aspect = shape.getDynamicsAspect()
        aspect.setFrictionCoeff(contact.friction)
        aspect.setRestitutionCoeff(contact.restitution)


def _floor() -> dart.dynamics.Skeleton:
    floor = dart.dynamics.Skeleton("floor")
    _, body = floor.createWeldJointAndBodyNodePair()
    node = _add_shape(body, Shape("box", FLOOR_M, (0.0, 0.0, -FLOOR_M[2] / 2)))
    neutral = Contact(NEUTRAL_FRICTION, 0.0, 1.0, 0.0, 0.0)
    _touch([node], neutral)
    return floor
