"""The contract between simulators and samplers, and the episode clock that all suites share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Env, EnvSpec, State

if TYPE_CHECKING:
    from roboloop.envs.panda.robot import Reading

Info = dict[str, Any]
FLOAT = np.dtype(np.float32)
OF_A_STEP = ("success", "raw_reward")
"""Numbers of an info that are told of each step alone."""
UNBOUNDED = 1e6
"""Bounds beyond this stand for none at all (DM Control writes 1e10), and no policy can be scaled to them."""


class SimulatorDied(RuntimeError):
    """A simulator's own process ended under us: its episode is lost and the environment must be made anew."""


class EnvLost(RuntimeError):
    """The process of an environment died or hung."""


class Outcome(NamedTuple):
    """What one action did, before the clock is applied."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    success: float | None
    raw_reward: float | None = None
    """The world's own objective where the reward is shaped or scaled; none where the two are the same."""
    ticks: int = 1
    """Simulator steps that it took."""
    sent: Array | None = None
    """The action that was really taken, in action units, where a robot's limits may change it."""
    reading: Reading | None = None
    """What a robot read, with its times."""
    is_fresh: bool = True
    """Whether all of it was new; something old may be the first sign of a fault, and such steps are not worth storing
    unless something new comes after them."""


def counted(info: Info) -> dict[str, float]:
    """Return what an environment counts over an episode, as its last step tells it."""
    return {key: value for key, value in info.items() if key not in OF_A_STEP and isinstance(value, (int, float))}


def repeated(tick: Callable[[Array], Outcome], action: Array, repeat: int) -> Outcome:
    """Hold an action for some simulator steps or until the world ends: rewards add up, a success stays."""
    reward, raw_reward, success, ticks = 0.0, None, None, 0
    for _ in range(repeat):
        out = tick(action)
        ticks += out.ticks
        reward += out.reward
        if out.raw_reward is not None:
            raw_reward = (raw_reward or 0.0) + out.raw_reward
        if out.success is not None:
            success = out.success if success is None else max(success, out.success)
        if out.terminated or out.truncated:
            break
    return Outcome(out.obs, reward, out.terminated, out.truncated, success, raw_reward, ticks)


class RealTimeEnv(Env, Protocol):
    """An environment that can be sent to and looked at apart, with a clock that does not wait for us."""

    period_s: float
    """Time from one action to the next."""
    is_simulated: bool
    """Whether time passes only when it is waited for."""

    def begin(self, seed: int) -> Array:
        """Ready the scene for an episode, by script if need be, and return its first observation."""
        ...

    def first_look(self) -> Array:
        """Return the first observation once more, as it is now; before the first action."""
        ...

    def send(self, action: Array) -> Array:
        """Send an action and return at once the one that was really taken."""
        ...

    def observe(self) -> Outcome:
        """Return what the last action led to; every call is a step of the episode."""
        ...

    def hold(self) -> None:
        """Stay; the episode is over or given up."""
        ...

    def now_s(self) -> float:
        """Return the time on the robot's clock."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Sleep until then; a simulated clock jumps."""
        ...


class World(Protocol):
    """One simulator task without a clock; what a suite has to provide."""

    def reset(self, seed: int) -> Array:
        """Start the episode of this seed."""
        ...

    def step(self, action: Array, repeat: int) -> Outcome:
        """Hold a float32 action inside the bounds for up to ``repeat`` control steps."""
        ...

    def render(self) -> Array:
        """Return the current picture."""
        ...

    def get_state(self) -> State:
        """Return all that the rest of the episode depends on."""
        ...

    def set_state(self, state: State) -> None:
        """Restore what ``get_state`` returned."""
        ...

    def close(self) -> None:
        """Release what the simulator holds."""
        ...


@dataclass(frozen=True)
class Task:
    """What is fixed about a world: spaces, the suite's identity and the length of an episode."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    action_low: Array
    action_high: Array
    horizon: int
    action_repeat: int = 1
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    action_choices: tuple[int, ...] = ()
    """Per action column the number of choices, 0 = continuous; empty = all continuous."""
    tasks: tuple[str, ...] = ()
    """Names of auxiliary tasks, the main one first (see ``auxiliary.py``)."""

    def __post_init__(self) -> None:
        name = self.protocol.get("task", "")
        if not len(self.action_low):
            raise ConfigError(f"env {name!r} has no actions")
        if not np.abs([self.action_low, self.action_high]).max() < UNBOUNDED:
            raise ConfigError(f"env {name!r} has unbounded actions: bounded actions only")

    def spec(self) -> EnvSpec:
        """Return the public spec; its horizon counts decisions, the protocol's counts simulator steps."""
        return EnvSpec(
            obs_shape=self.obs_shape,
            obs_dtype=self.obs_dtype,
            action_low=tuple(float(x) for x in self.action_low),
            action_high=tuple(float(x) for x in self.action_high),
            max_episode_steps=-(-self.horizon // self.action_repeat),
            protocol={**self.protocol, "horizon": self.horizon, "action_repeat": self.action_repeat},
            action_choices=self.action_choices if any(self.action_choices) else (),
            tasks=self.tasks,
        )


class EpisodeEnv:
    """An ``Env`` made of a world and a clock: makes actions valid, repeats them, truncates at the horizon."""

    def __init__(self, world: World, task: Task) -> None:
        self.world = world
        self._spec = task.spec()
        self._low = np.asarray(task.action_low, np.float32)
        self._high = np.asarray(task.action_high, np.float32)
        self._choice = np.asarray(task.action_choices) > 0 if any(task.action_choices) else None
        self._dtype = task.obs_dtype
        self._horizon = task.horizon
        self._repeat = task.action_repeat
        self._clock = 0
        self._running = False

    @property
    def spec(self) -> EnvSpec:
        """Shapes, bounds, horizon and protocol."""
        return self._spec

    def reset(self, seed: int) -> Array:
        """Start the episode of this seed."""
        self._clock, self._running = 0, True
        return self.world.reset(seed).astype(self._dtype, order="C")

    def _valid(self, action: Array) -> Array:
        """Return the nearest action that the world accepts; choices are whole numbers."""
        action = np.asarray(action, np.float32)
        if action.shape != self._low.shape or not math.isfinite(action.sum()):
            raise ValueError(f"an action is {self._low.shape} finite numbers, got {action.tolist()}")
        action = np.minimum(np.maximum(action, self._low), self._high)
        return action if self._choice is None else np.where(self._choice, np.rint(action), action)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Apply one action for ``action_repeat`` simulator steps or until the episode ends."""
        self._must_run()
        out = self._clocked(self.world.step(self._valid(action), min(self._repeat, self._horizon - self._clock)))
        info: Info = {}
        if out.success is not None:
            info["success"] = out.success
        if out.raw_reward is not None:
            info["raw_reward"] = out.raw_reward
        if out.sent is not None:
            info["sent_action"] = out.sent.tolist()
        return out.obs.astype(self._dtype, order="C"), out.reward, out.terminated, out.truncated, info

    def _must_run(self) -> None:
        if not self._running:
            raise RuntimeError("the episode is over: reset the environment before the next step")

    def _clocked(self, out: Outcome) -> Outcome:
        """Count a step, and truncate at the horizon."""
        self._clock += out.ticks
        truncated = out.truncated or self._clock >= self._horizon
        self._running = not (out.terminated or truncated)
        return out if truncated == out.truncated else out._replace(truncated=truncated)

    def render(self) -> Array:
        """Return the current picture."""
        return self.world.render()

    def get_state(self) -> State:
        """Return the clock and the world's state."""
        return {"clock": self._clock, "running": self._running, "world": self.world.get_state()}

    def set_state(self, state: State) -> None:
        """Restore the clock and the world."""
        self._clock, self._running = int(state["clock"]), bool(state["running"])
        self.world.set_state(state["world"])

    def close(self) -> None:
        """Release the world."""
        self.world.close()
