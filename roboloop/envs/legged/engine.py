"""What a physics engine must do for a legged robot, and the contact between its feet and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from roboloop.core.errors import ConfigError, nearest, needs_extra
from roboloop.core.resolve import load
from roboloop.core.types import Array
from roboloop.envs.legged.model import RobotModel
from roboloop.envs.legged.suite import ENGINES

EXTRAS = {"bullet": ("pybullet", "bullet"), "dart": ("dartpy", "dart"), "mujoco": ("mujoco", "gym")}
"""Engine -> its module, and the extra that installs it."""


class Contact(NamedTuple):
    """What a foot and the floor have together; the floor by itself is neutral."""

    friction: float
    spinning_friction: float
    """Torsional friction as a length, in m."""
    restitution: float
    stiffness_n_m: float
    damping_ns_m: float


class Mattress(NamedTuple):
    """A deformable floor of springs."""

    top_m: float
    mass_kg: float
    stiffness: float
    damping: float
    neo_hookean: bool
    friction: float


class LinkReport(NamedTuple):
    """What an engine says of its links and joints at a pose, for comparing engines."""

    position_m: Array
    """Link frames, [L, 3]."""
    rotation: Array
    """[L, 3, 3]."""
    com_m: Array
    """Centres of mass in world axes, [L, 3]."""
    mass_kg: Array
    """[L]."""
    inertia_kg_m2: Array
    """[L, 3]."""
    limits_rad: Array
    """[2, J]."""
    damping: Array
    """[J]."""


class Engine(Protocol):
    """One robot on one floor, whose top is at z = 0."""

    def reset(self, q: Array, dq: Array) -> None:
        """Put the robot there with nothing remembered: the same bits follow in a used and in a fresh engine."""
        ...

    def step(self, torque_nm: Array, substeps: int = 1) -> None:
        """Hold the motors' torques for some substeps of 1/500 s."""
        ...

    def read(self) -> tuple[Array, Array]:
        """Return q and dq."""
        ...

    def set_contact(self, contacts: Sequence[Contact]) -> None:
        """Say what each foot and the floor have together from now on."""
        ...

    def set_model(self, model: RobotModel) -> None:
        """Take masses, inertias and joint damping from a robot of the same build; before a reset."""
        ...

    def push(self, force_n: Array) -> None:
        """Push at each foot, [F, 3] in world axes, during the next substep."""
        ...

    def feet(self) -> Array:
        """Return where the feet are, [F, 3]."""
        ...

    def report(self) -> LinkReport:
        """Return what the engine says of its links at the current pose."""
        ...

    def close(self) -> None:
        """Release the engine."""
        ...


_BUILDERS = {
    "bullet": "roboloop.envs.legged.bullet:BulletEngine",
    "dart": "roboloop.envs.legged.dart:DartEngine",
    "mujoco": "roboloop.envs.legged.mujoco:MujocoEngine",
}
"""Names, so that one engine is imported and no other."""


def make_engine(name: str, model: RobotModel, contact: Contact, mattress: Mattress | None = None) -> Engine:
    """Build a robot in an engine."""
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}{nearest(name, ENGINES)} (known: {', '.join(ENGINES)})")
    package, extra = EXTRAS[name]
    with needs_extra(f"engine {name!r}", (package,), extra):
        engine: Engine = load(_BUILDERS[name])(model, contact, mattress)
    return engine
