"""The records that travel between packages, and the protocols that join them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[str, Any]
"""Nested dict whose leaves are arrays, tensors or plain JSON values."""
Metrics: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class EnvSpec:
    """What a policy and a store must know of an environment before the first reset."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    max_episode_steps: int
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Written into every result: task, reward version, horizon, goal mode, ..."""

    @property
    def action_dim(self) -> int:
        """Number of action dimensions."""
        return len(self.action_low)


class Env(Protocol):
    """One simulator or robot; every episode begins with an explicit seed that fixes all its randomness."""

    @property
    def spec(self) -> EnvSpec:
        """Shapes, bounds, horizon and protocol."""
        ...

    def reset(self, seed: int) -> Array:
        """Begin an episode and return its first observation."""
        ...

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info (``success`` where the env knows it)."""
        ...

    def render(self) -> Array:
        """Return a picture, ``[H, W, 3]`` uint8."""
        ...

    def get_state(self) -> State:
        """Return all that a new instance needs to go on bit for bit."""
        ...

    def set_state(self, state: State) -> None:
        """Continue from what ``get_state`` returned."""
        ...

    def close(self) -> None:
        """Release the simulator."""
        ...


class EpisodeEnd(NamedTuple):
    """One finished episode, as the sampler saw it."""

    env: int
    episode: int
    length: int
    episode_return: float
    success: float
    """1.0 if reached at any step, 0.0 if not, NaN where the env does not say."""


class Rollout(NamedTuple):
    """Experience with leading dims ``[T, B]``: T steps of B environments."""

    obs: Array
    action: Array
    reward: Array
    next_obs: Array  # the true successor, never a reset observation
    terminated: Array  # the world ended: the value of next_obs is zero
    truncated: Array  # the clock or an operator ended it: bootstrap through next_obs
    episodes: list[EpisodeEnd]

    @property
    def num_steps(self) -> int:
        """Environment steps in this rollout."""
        return int(self.reward.size)


class BatchSpec(NamedTuple):
    """What an algorithm needs from ``Store.sample``."""

    size: int
    n_step: int
    gamma: float
    frame_stack: int


class Batch(NamedTuple):
    """A sampled batch; leaves are ``[N, ...]`` float32 arrays, observations keep their dtype."""

    obs: Array
    action: Array
    reward: Array  # discounted sum over the n-step window
    next_obs: Array  # observation that ends the window
    discount: Array  # gamma^m, or zero where the world ended inside the window


class Policy(Protocol):
    """Maps observations to actions: batched, numpy in and out, no gradients."""

    def act(self, obs: Array, explore: bool, rng: np.random.Generator) -> Array:
        """Return actions ``[B, A]`` in the environment's own units for observations ``[B, ...]``."""
        ...


class Stateful(Protocol):
    """Anything whose next step depends on its past: a checkpoint is the union of these."""

    def state(self) -> State:
        """Return everything the next step depends on."""
        ...

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        ...


class Algorithm(Stateful, Protocol):
    """Nets and losses; never envs, samplers or files."""

    needs: BatchSpec

    @property
    def policy(self) -> Policy:
        """The policy that collects and is evaluated."""
        ...

    def update(self, batch: Batch) -> Metrics:
        """Take one gradient step on a batch."""
        ...

    def close(self) -> None:
        """Release processes and shared memory."""
        ...
