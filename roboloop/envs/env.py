"""The contract between simulators and samplers, and the episode clock that all suites share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, State

Info = dict[str, Any]
UNBOUNDED = 1e6
"""Bounds beyond this stand for none at all (DM Control writes 1e10), and no policy can be scaled to them."""


class Outcome(NamedTuple):
    """One simulator step, before the clock is applied."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    success: float | None


class World(Protocol):
    """One simulator task without a clock; what a suite has to provide."""

    def reset(self, seed: int) -> Array:
        """Start the episode of this seed."""
        ...

    def step(self, action: Array) -> Outcome:
        """Advance by one control step with a float32 action inside the bounds."""
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
    obs_dtype: str
    action_low: Array
    action_high: Array
    horizon: int
    action_repeat: int = 1
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not np.abs([self.action_low, self.action_high]).max() < UNBOUNDED:
            raise ConfigError(f"env {self.protocol.get('task', '')!r} has unbounded actions: bounded actions only")

    def spec(self) -> EnvSpec:
        """Return the public spec; its horizon counts decisions, the protocol's counts simulator steps."""
        return EnvSpec(
            obs_shape=self.obs_shape,
            obs_dtype=self.obs_dtype,
            action_low=tuple(float(x) for x in self.action_low),
            action_high=tuple(float(x) for x in self.action_high),
            max_episode_steps=-(-self.horizon // self.action_repeat),
            protocol={**self.protocol, "horizon": self.horizon, "action_repeat": self.action_repeat},
        )


class EpisodeEnv:
    """An ``Env`` made of a world and a clock: clips actions, repeats them, truncates at the horizon."""

    def __init__(self, world: World, task: Task) -> None:
        self.world = world
        self._spec = task.spec()
        self._low = np.asarray(task.action_low, np.float32)
        self._high = np.asarray(task.action_high, np.float32)
        self._dtype = np.dtype(task.obs_dtype)
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
        return self.world.reset(seed).astype(self._dtype)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Apply one action for ``action_repeat`` simulator steps or until the episode ends."""
        if not self._running:
            raise RuntimeError("the episode is over: reset the environment before the next step")
        action = np.asarray(action, np.float32)
        if action.shape != self._low.shape or not math.isfinite(action.sum()):
            raise ValueError(f"an action is {self._low.shape} finite numbers, got {action.tolist()}")
        action = np.minimum(np.maximum(action, self._low), self._high)
        reward, success = 0.0, None
        for _ in range(self._repeat):
            out = self.world.step(action)
            self._clock += 1
            reward += out.reward
            if out.success is not None:
                success = out.success if success is None else max(success, out.success)
            truncated = out.truncated or self._clock >= self._horizon
            if out.terminated or truncated:
                self._running = False
                break
        info: Info = {} if success is None else {"success": success}
        return out.obs.astype(self._dtype), reward, out.terminated, truncated, info

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
