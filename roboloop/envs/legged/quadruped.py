"""``laikago/<engine>[-<variant>]`` and ``a1/...``: quadrupeds with twelve motors that run forwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.env import EpisodeEnv
from roboloop.envs.legged.engine import Contact, Mattress
from roboloop.envs.legged.make import make_env
from roboloop.envs.legged.model import RobotModel, from_quaternion, from_rpy, to_quaternion
from roboloop.envs.legged.quadrupeds import A1, A1_LEG, LAIKAGO, LAIKAGO_LEG, LegTable, Mass, joined
from roboloop.envs.legged.suite import LeggedEnvConfig
from roboloop.envs.legged.variants import Load, Ranges, Variant
from roboloop.envs.legged.world import CONTROL_S, Frame, ParameterRanges

JOINTS_Q, JOINTS_DQ = slice(7, 19), slice(6, 18)
LAGS = (0, 4, 8)
"""What a policy sees, in control steps back: speeds are told by differences."""
START_AT, START_RPY, START_SPEED, START_Q, START_DQ = 0.03, 0.1, 0.2, 0.01, 0.1
"""Half widths of the noise at the start."""
AT_LIMIT = 0.97
MAX_SPEED, MAX_TILT_RAD = 90.0, 1.2
FULL_SPEED_SHARE = 1 / 50
"""Of the target speed in m/s, gained per control step."""


@dataclass(frozen=True)
class Quadruped:
    """What is particular about one of them."""

    model: RobotModel
    leg: LegTable
    contact: Contact
    start_rad: tuple[float, float, float]
    """Hip, upper, lower."""
    start_height_m: float
    """The trunk's: with it no noise of the start pushes a toe into the floor."""
    lowest_m: float
    fastest_m_s: float
    soft: tuple[float, float]
    """Stiffness and damping of the soft floor."""
    mattress: Mattress
    burden_kg: tuple[float, float]
    """What the heavy variant adds to the upper and the lower front left leg, at the end of each."""
    alive: float = 4.5
    speed_weight: float = 4.0
    action_cost: float = 0.1
    limit_cost: float = 0.5
    jerk_cost: float = 0.03
    posture_cost: float = 0.35
    side_cost: float = 0.5
    most: float = 5.0
    """Most that sudden changes of speed, and the posture, can cost."""


LAIKAGO_TABLE = Quadruped(
    model=LAIKAGO,
    leg=LAIKAGO_LEG,
    contact=Contact(0.5, 0.0, 0.0, 1e5, 2000.0),
    start_rad=(0.0, 0.0, -0.5),
    start_height_m=0.53,
    lowest_m=0.3,
    fastest_m_s=2.5,
    soft=(1500.0, 150.0),
    mattress=Mattress(0.0, 4000.0, 60000.0, 150.0, False, 1.0),
    burden_kg=(1.0, 2.0),
)

A1_TABLE = Quadruped(
    model=A1,
    leg=A1_LEG,
    contact=Contact(0.5, 0.0, 0.0, 5e4, 1000.0),
    start_rad=(0.0, 0.9, -1.8),
    start_height_m=0.33,
    lowest_m=0.15,
    fastest_m_s=1.5,
    soft=(800.0, 80.0),
    mattress=Mattress(-0.02, 1000.0, 60000.0, 150.0, False, 1.0),
    burden_kg=(0.5, 0.5),
)

DOMAINS = Ranges(
    mass=(0.8, 1.2),
    inertia=(0.5, 1.5),
    torque=(0.8, 1.2),
    joint_damping=(0.2, 2.0),
    latency_s=(0.0, 0.02),
    friction=(0.4, 1.25),
    restitution=(0.0, 0.5),
    spinning_friction=(0.0, 0.1),
    log10_hardness=(-1.3, -0.1),
)


def _variants(table: Quadruped) -> dict[str, Variant]:
    """Return the named table of a robot's differences; leg troubles are those of the front left leg."""
    links = {link.name: link for link in table.model.links}
    upper, lower = links["FL_upper"], links["FL_lower"]
    weights = (
        Mass(table.burden_kg[0], _side(table.leg.lower_at_m), (0.0, 0.0, 0.0)),
        Mass(table.burden_kg[1], _side(table.leg.toe_m), (0.0, 0.0, 0.0)),
    )
    loads = {}
    for link, weight in zip((upper, lower), weights, strict=True):
        both = joined(Mass(link.mass_kg, link.com_m, link.inertia_kg_m2), weight)
        loads[link.name] = Load(both.kg, both.at_m)
    weak = tuple(0.5 if link.name.startswith("FL") else 1.0 for link in table.model.links[1:])
    return {
        "soft": Variant(stiffness_n_m=table.soft[0], damping_ns_m=table.soft[1]),
        "deform": Variant(mattress=table.mattress),
        "heavy": Variant(loads=loads),
        "power": Variant(torque_scale=weak),
        "emf": Variant(emf_speed_rad_s=15.0),
        "latency": Variant(latency_s=0.02),
        "slippery": Variant(friction=0.2),
    }


def _side(at_m: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return a place of a right leg on the left."""
    return at_m[0], -at_m[1], at_m[2]


def roll_pitch_yaw(rotation: Array) -> Array:
    """Return the angles of ``from_rpy``."""
    pitch = math.asin(min(1.0, max(-1.0, -rotation[2, 0])))
    return np.array([math.atan2(rotation[2, 1], rotation[2, 2]), pitch, math.atan2(rotation[1, 0], rotation[0, 0])])


class QuadrupedTask:
    """Run forwards, ever faster up to a speed."""

    domains = DOMAINS
    parameters = ParameterRanges(friction=4.0, spinning_friction_m=0.1, restitution=0.5, hardness=400.0, motor=3.0)
    state_dim = 37
    lags: tuple[int, ...] = LAGS
    sees_feet = True

    def __init__(self, table: Quadruped) -> None:
        self.table, self.model, self.contact = table, table.model, table.contact
        self.variants: Mapping[str, Variant] = _variants(table)
        low, high = table.model.limits_rad
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._rest = np.array(table.start_rad * 4)
        self._posture = np.array((2.0, 1.0, 1.0) * 4)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Stand just above the floor."""
        at = rng.uniform(-START_AT, START_AT, 3)
        at[2] += self.table.start_height_m
        roll, pitch, yaw = rng.uniform(-START_RPY, START_RPY, 3).tolist()
        joints = self._rest + rng.uniform(-START_Q, START_Q, 12)
        speed, joint_speed = rng.uniform(-START_SPEED, START_SPEED, 6), rng.uniform(-START_DQ, START_DQ, 12)
        return (
            np.concatenate((at, to_quaternion(from_rpy((roll, pitch, yaw))), joints)),
            np.concatenate((speed, joint_speed)),
        )

    def state(self, before: Frame, now: Frame) -> Array:
        """Return height, rotation matrix, velocity, joints, and toes as seen from the trunk, in its axes."""
        assert now.feet_m is not None
        rotation = from_quaternion(now.q[3:7])
        toes = (now.feet_m - now.q[:3]) @ rotation
        return np.concatenate((now.q[2:3], rotation.ravel(), now.dq[:3], now.q[JOINTS_Q], toes.ravel()))

    def pose(self, state: Array) -> tuple[Array, Array]:
        """Return q and dq of a state at x = y = 0; speeds that it does not hold are 0."""
        state = np.asarray(state, float)
        q = np.concatenate(((0.0, 0.0, state[0]), to_quaternion(state[1:10].reshape(3, 3)), state[13:25]))
        dq = np.zeros(18)
        dq[:3] = state[10:13]
        return q, dq

    def judge(self, before: Frame, now: Frame, action: Array, step: int) -> tuple[float, bool]:
        """Pay for living and for speed up to the target; charge for effort, limits, jerks, posture and drift."""
        t = self.table
        target = min(step * FULL_SPEED_SHARE, t.fastest_m_s)
        speed = (now.q[0] - before.q[0]) / CONTROL_S
        joints, dq = now.q[JOINTS_Q], now.dq[JOINTS_DQ]
        at_limit = np.count_nonzero(np.abs(joints - self._middle) > AT_LIMIT * self._half)
        jerk = min(t.jerk_cost * float(np.abs(dq - before.dq[JOINTS_DQ]).sum()), t.most)
        posture = min(t.posture_cost * float(self._posture @ (joints - self._rest) ** 2), t.most)
        reward = t.alive + t.speed_weight * min(speed, target) - t.action_cost * float(action @ action)
        reward -= t.limit_cost * at_limit + jerk + posture + t.side_cost * abs(float(now.q[1]))
        tilt = np.abs(roll_pitch_yaw(from_quaternion(now.q[3:7]))).max()
        fine = np.abs(dq).max() < MAX_SPEED and now.q[2] > t.lowest_m and tilt < MAX_TILT_RAD
        return reward, not fine


class LaikagoTask(QuadrupedTask):
    """Laikago."""

    def __init__(self) -> None:
        super().__init__(LAIKAGO_TABLE)


class A1Task(QuadrupedTask):
    """A1."""

    def __init__(self) -> None:
        super().__init__(A1_TABLE)


def make_laikago(task: str, cfg: LeggedEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``laikago/<engine>[-<variant>]``."""
    return make_env(LaikagoTask(), task, cfg, evaluation)


def make_a1(task: str, cfg: LeggedEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``a1/<engine>[-<variant>]``."""
    return make_env(A1Task(), task, cfg, evaluation)
