"""The control loop that all legged robots share, in any engine: 50 Hz torques, ten substeps each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.envs.env import Outcome, repeated
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.engine import Contact, make_engine
from roboloop.envs.legged.model import SUBSTEP_S, RobotModel
from roboloop.envs.legged.picture import side_view
from roboloop.envs.legged.variants import Ranges, Situation, Variant, applied, draw
from roboloop.envs.replay import ReplayWorld

SUBSTEPS = 10
CONTROL_S = SUBSTEPS * SUBSTEP_S
HORIZON = 500


class Frame(NamedTuple):
    """The robot at one control step, without noise."""

    q: Array
    dq: Array
    feet_m: Array | None
    """Where the feet are, [F, 3], if the task looks at them."""


class ParameterRanges(NamedTuple):
    """How far a hybrid simulator's parameters go at t = ±1: by a factor, or where the nominal is 0 by an amount."""

    friction: float
    spinning_friction_m: float
    restitution: float
    hardness: float
    """Of stiffness and damping together."""
    motor: float


class LeggedTask(Protocol):
    """What is particular about a robot."""

    model: RobotModel
    contact: Contact
    variants: Mapping[str, Variant]
    domains: Ranges
    parameters: ParameterRanges
    state_dim: int
    """Numbers that one control step shows."""
    lags: tuple[int, ...]
    """Control steps back whose states make an observation, the newest (0) first."""
    sees_feet: bool

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw q and dq of an episode's beginning."""
        ...

    def state(self, before: Frame, now: Frame) -> Array:
        """Return the scaled state without noise."""
        ...

    def pose(self, state: Array) -> tuple[Array, Array]:
        """Return q and dq that show such a state."""
        ...

    def judge(self, before: Frame, now: Frame, action: Array, step: int) -> tuple[float, bool]:
        """Return the reward of a control step, and whether the world ended."""
        ...


class LeggedWorld(ReplayWorld):
    """One legged robot; what a seed and the actions do not determine is set from outside by ``set_parameters``."""

    def __init__(self, task: LeggedTask, engine: str, variant: Variant, cfg: LeggedConfig) -> None:
        super().__init__(task.model.num_joints)
        self.task, self._variant, self._cfg = task, variant, cfg
        self.model, self._nominal_contact = applied(variant, task.model, task.contact)
        self._engine = make_engine(engine, self.model, self._nominal_contact, variant.mattress)
        self._joints = slice(self.model.root_dq, None)
        self._num_feet = len(self.model.feet)
        self._now = self._before = Frame(np.zeros(0), np.zeros(0), None)
        self.contacts: tuple[Contact, ...] = ()
        """What each foot and the floor have together now."""

    @property
    def num_parameters(self) -> int:
        """Numbers that ``set_parameters`` takes."""
        return 4 * self._num_feet + self.model.num_joints

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """What they are, in order: four of each foot's contact, then the motors."""
        feet = (self.model.links[i].name for i in self.model.feet)
        kinds = ("friction", "spinning", "restitution", "hardness")
        contact = (f"{foot}.{kind}" for foot in feet for kind in kinds)
        return (*contact, *(f"{joint.name}.motor" for joint in self.model.joints))

    def start(self, seed: int) -> Array:
        """Start the episode of this seed, with the parameters at their nominal values."""
        situation = Situation(self.model, self._nominal_contact, self._variant)
        if self._cfg.randomize:
            draw(self.task.domains, situation, stream(seed, "domain"))
            self._engine.set_model(situation.model)
        self._situation = situation
        self._noise, self._pushes = stream(seed, "noise"), stream(seed, "push")
        self._touch((situation.contact,) * self._num_feet)
        self._limit_nm = situation.torque_nm
        return self.restore(*self.task.start(stream(seed, "start")))

    def restore(self, q: Array, dq: Array) -> Array:
        """Put the robot there as if the episode began so, and return the observation; random streams go on."""
        self._engine.reset(q, dq)
        self._now = self._before = self._look()
        self._step_number = 0
        self._actions_sent = [np.zeros(self.model.num_joints)]
        self._states: list[Array] = []
        self._seen: list[Array] = []
        self._see()
        return self._observation()

    def set_parameters(self, t: Array) -> None:
        """Set contact and motors for the control steps to come; all 0 is the simulator as it is, bit for bit."""
        ranges, nominal = self.task.parameters, self._situation.contact
        t = np.minimum(np.maximum(np.asarray(t, float), -1.0), 1.0)
        logs = np.log([ranges.friction, 1.0, ranges.restitution, ranges.hardness])
        contacts = []
        for foot in range(self._num_feet):
            part = t[4 * foot : 4 * foot + 4]
            friction, _, restitution, hardness = np.exp(logs * part).tolist()
            contacts.append(
                Contact(
                    nominal.friction * friction,
                    max(0.0, nominal.spinning_friction + ranges.spinning_friction_m * float(part[1])),
                    nominal.restitution * restitution or max(0.0, ranges.restitution * float(part[2])),
                    nominal.stiffness_n_m * hardness,
                    nominal.damping_ns_m * hardness,
                )
            )
        self._touch(tuple(contacts))
        self._limit_nm = self._situation.torque_nm * np.exp(math.log(ranges.motor) * t[4 * self._num_feet :])

    def _touch(self, contacts: tuple[Contact, ...]) -> None:
        self.contacts = contacts
        self._engine.set_contact(contacts)

    def parameter_values(self) -> Array:
        """Return what is set now, in the order of the names: hardness and motors as factors of the source's own."""
        own = self._situation.contact
        whole = own.stiffness_n_m + own.damping_ns_m
        contact = [(*c[:3], (c.stiffness_n_m + c.damping_ns_m) / whole) for c in self.contacts]
        return np.concatenate((*contact, self._limit_nm / self._situation.torque_nm))

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        action = action.astype(float)
        self._before, now = self._now, self._now
        self._drive(self._torque(self._delayed(action), now.dq[self._joints]))
        self._now = self._look()
        self._step_number += 1
        reward, terminated = self.task.judge(self._before, self._now, action, self._step_number)
        self._see()
        return Outcome(self._observation(), float(reward), bool(terminated), False, None)

    def _delayed(self, action: Array) -> Array:
        """Return the action as it arrives: a mix of two where the latency is no whole number of control steps."""
        self._actions_sent.append(action)
        latency = self._situation.action_latency_s / CONTROL_S
        if not latency:
            return action
        whole, part = int(latency), latency - int(latency)
        newest = len(self._actions_sent) - 1
        late, later = (self._actions_sent[max(0, newest - k)] for k in (whole, whole + 1))
        mixed: Array = (1 - part) * late + part * later
        return mixed

    def _torque(self, action: Array, dq: Array) -> Array:
        """Return the torques of an action; a motor that drives is weaker the faster it is, one that brakes is not."""
        if self._cfg.action_noise:
            action = action + self._noise.uniform(-self._cfg.action_noise, self._cfg.action_noise, len(action))
        torque_nm: Array = action * self._limit_nm
        if self._situation.emf_speed_rad_s:
            torque_nm *= np.clip(1 - dq * np.sign(action) / self._situation.emf_speed_rad_s, 0.0, 1.0)
        return torque_nm

    def _drive(self, torque_nm: Array) -> None:
        if not self._cfg.push_n:
            self._engine.step(torque_nm, SUBSTEPS)
            return
        for force_n in self._pushes.uniform(-self._cfg.push_n, self._cfg.push_n, (SUBSTEPS, self._num_feet, 3)):
            self._engine.push(force_n)
            self._engine.step(torque_nm)

    def _look(self) -> Frame:
        return Frame(*self._engine.read(), self._engine.feet() if self.task.sees_feet else None)

    def frame(self) -> Frame:
        """Return where the robot is."""
        return self._now

    def _see(self) -> None:
        """Take note of the newest state, as it is and as it is seen: late, if observations are, and with noise."""
        state = self.task.state(self._before, self._now)
        self._states.append(state)
        share = min(1.0, self._situation.obs_latency_s / CONTROL_S)
        if share:
            state = (1 - share) * state + share * self._states[max(0, len(self._states) - 2)]
        width = self._cfg.obs_noise
        self._seen.append(state + self._noise.uniform(-width, width, len(state)) if width else state)

    def true_state(self) -> Array:
        """Return the newest state, neither late nor noisy."""
        return self._states[-1].copy()

    def true_obs(self) -> Array:
        """Return the observation as it would be, were nothing late or noisy."""
        return self._lagged(self._states)

    def _observation(self) -> Array:
        return self._lagged(self._seen)

    def _lagged(self, states: list[Array]) -> Array:
        """Return the states that make an observation; before the beginning is the first one."""
        newest = len(states) - 1
        return np.concatenate([states[max(0, newest - lag)] for lag in self.task.lags])

    def render(self) -> Array:
        """Return the robot from its side."""
        return side_view(self.model, self._now.q)

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()
