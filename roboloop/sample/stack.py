"""The frame stack that a policy acts on; replay rebuilds the same stacks by index."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array, EnvSpec, State


class FrameStack:
    """The last k observations of B environments; an episode's first one fills the whole stack."""

    def __init__(self, spec: EnvSpec, num_envs: int, frames: int) -> None:
        self._frames = np.zeros((num_envs, frames, *spec.obs_shape), dtype=spec.obs_dtype)

    def reset(self, env: int, obs: Array) -> None:
        """Begin an episode."""
        self._frames[env] = obs

    def push(self, env: int, obs: Array) -> None:
        """Add the newest observation."""
        self._frames[env, :-1] = self._frames[env, 1:]
        self._frames[env, -1] = obs

    def reset_some(self, envs: Array, obs: Array) -> None:
        """Begin an episode in some environments, given by their numbers, with an observation of each."""
        self._frames[envs] = obs[:, None]

    def push_all(self, obs: Array) -> None:
        """Add the newest observation of every environment."""
        self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = obs

    @property
    def newest(self) -> Array:
        """The observations without history, ``[B, *obs]``."""
        newest: Array = self._frames[:, -1]
        return newest

    @property
    def stacked(self) -> Array:
        """What the policy sees: ``[B, k, *obs]``, or ``[B, *obs]`` when k is 1."""
        return self._frames if self._frames.shape[1] > 1 else self.newest

    def state(self) -> State:
        """Return the stacks."""
        return {"frames": self._frames.copy()}

    def load(self, state: State) -> None:
        """Restore the stacks."""
        self._frames[:] = state["frames"]
