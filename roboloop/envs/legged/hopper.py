"""``hopper/<engine>[-<variant>]``: a planar hopper with three motors, described once for all engines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.env import EpisodeEnv
from roboloop.envs.legged.engine import Contact, Mattress
from roboloop.envs.legged.make import make_env
from roboloop.envs.legged.model import Joint, Link, RobotModel, Shape, Vec3
from roboloop.envs.legged.suite import LeggedEnvConfig
from roboloop.envs.legged.variants import Load, Ranges, Variant
from roboloop.envs.legged.world import CONTROL_S, Frame, ParameterRanges

JOINT_DAMPING, TORQUE_NM = 2.0, 200.0
FORWARD: Vec3 = (0.0, -1.0, 0.0)
"""Axis of the hinges: a positive angle swings the lower link forwards."""
START_HEIGHT_M = 1.25
"""The torso's, with 4 cm under the foot: no noise of the start pushes it into the floor."""


def _hinge(name: str, at_z: float, limits_rad: tuple[float, float]) -> Joint:
    return Joint(name, FORWARD, (0.0, 0.0, at_z), limits_rad, JOINT_DAMPING, TORQUE_NM)


def _upright(radius: float, length: float, z: float) -> tuple[Shape, ...]:
    return (Shape("capsule", (radius, length), (0.0, 0.0, z)),)


MODEL = RobotModel(
    name="hopper",
    root="planar",
    links=(
        Link("torso", "", None, 3.66519, (0.0, 0.0, 0.0), (0.07941, 0.07941, 0.00611), _upright(0.05, 0.40, 0.0)),
        Link(
            "thigh",
            "torso",
            _hinge("thigh", -0.2, (-2.61799, 0.5)),
            4.05789,
            (0.0, 0.0, -0.225),
            (0.10567, 0.10567, 0.00676),
            _upright(0.05, 0.45, -0.225),
        ),
        Link(
            "leg",
            "thigh",
            _hinge("leg", -0.45, (-2.61799, 0.5)),
            2.78136,
            (0.0, 0.0, -0.25),
            (0.07945, 0.07945, 0.00297),
            _upright(0.04, 0.50, -0.25),
        ),
        Link(
            "foot",
            "leg",
            _hinge("foot", -0.5, (-0.785398, 0.785398)),
            5.31557,
            (0.065, 0.0, 0.0),
            (0.01276, 0.12159, 0.12159),
            (Shape("capsule", (0.06, 0.45), (0.065, 0.0, 0.0), (0.0, math.pi / 2, 0.0)),),
            foot_m=(0.065, 0.0, 0.0),
        ),
    ),
)

CONTACT = Contact(friction=0.8, spinning_friction=0.0, restitution=0.5, stiffness_n_m=1e5, damping_ns_m=2000.0)
"""About rigid. Without a spring the floor would be a damper only, in which a standing robot sinks by 4 cm a second."""

VARIANTS = {
    "soft": Variant(stiffness_n_m=300.0, damping_ns_m=200.0),
    "deform": Variant(mattress=Mattress(-0.05, 20.0, 1500.0, 50.0, True, 1.0)),
    "heavy": Variant(loads={"torso": Load(5.66519, (0.0, 0.0, 0.15)), "thigh": Load(5.05789, (0.0, 0.0, -0.125))}),
    "power": Variant(torque_scale=(1.0, 1.0, 0.5)),
    "emf": Variant(emf_speed_rad_s=10.0),
    "latency": Variant(latency_s=0.02),
    "slippery": Variant(friction=0.25),
}

DOMAINS = Ranges(
    mass=(0.5, 1.5),
    inertia=(0.4, 1.8),
    torque=(0.5, 1.5),
    joint_damping=(0.2, 3.0),
    latency_s=(0.0, 0.02),
    friction=(0.4, 1.5),
    restitution=(0.0, 1.5),
    spinning_friction=(0.0, 0.2),
    log10_hardness=(-2.1, -0.1),
)

START_Q, START_DQ = 0.02, 0.1
"""Half widths of the noise at the start."""
SCALE = np.array([1.0] * 7 + [0.1] * 4)
ALIVE, ACTION_COST, LIMIT_COST, JERK_COST, JERK_MOST = 3.0, 0.5, 3.0, 0.05, 5.0
AT_LIMIT = 0.97
MAX_SPEED, LOWEST_M, HIGHEST_M = 50.0, 0.6, 1.8
JOINTS = slice(3, 6)


class HopperTask:
    """Hop forwards."""

    model = MODEL
    contact = CONTACT
    variants: Mapping[str, Variant] = VARIANTS
    domains = DOMAINS
    parameters = ParameterRanges(friction=4.0, spinning_friction_m=0.1, restitution=4.0, hardness=400.0, motor=3.0)
    state_dim = 11
    lags: tuple[int, ...] = (0,)
    sees_feet = False

    def __init__(self) -> None:
        low, high = MODEL.limits_rad
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Stand upright just above the floor."""
        q, dq = rng.uniform(-START_Q, START_Q, 6), rng.uniform(-START_DQ, START_DQ, 6)
        q[1] += START_HEIGHT_M
        return q, dq

    def state(self, before: Frame, now: Frame) -> Array:
        """Return height, pitch, joints, the speed over the last control step, dz, dpitch, joint speeds."""
        state = np.concatenate((now.q[1:], now.dq))
        state *= SCALE
        if before is not now:
            state[5] = (now.q[0] - before.q[0]) / CONTROL_S
        return state

    def pose(self, state: Array) -> tuple[Array, Array]:
        """Return q and dq of a state, at x = 0; the speed is the one over the last control step."""
        raw = np.asarray(state, float) / SCALE
        return np.concatenate(([0.0], raw[:5])), raw[5:].copy()

    def judge(self, before: Frame, now: Frame, action: Array, step: int) -> tuple[float, bool]:
        """Pay for living and for speed; charge for effort, joints at their limits, and sudden changes of speed."""
        speed = (now.q[0] - before.q[0]) / CONTROL_S
        at_limit = np.count_nonzero(np.abs(now.q[JOINTS] - self._middle) > AT_LIMIT * self._half)
        jerk = min(JERK_COST * float(np.abs(now.dq[JOINTS] - before.dq[JOINTS]).sum()), JERK_MOST)
        reward = ALIVE + speed - ACTION_COST * float(action @ action) - LIMIT_COST * at_limit - jerk
        fine = np.abs(now.dq).max() < MAX_SPEED and LOWEST_M < now.q[1] < HIGHEST_M
        return reward, not fine


def make(task: str, cfg: LeggedEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``hopper/<engine>[-<variant>]``."""
    return make_env(HopperTask(), task, cfg, evaluation)
