"""Our environments as Gymnasium ones, so that peers train on the very same simulator, goals and horizon."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from roboloop.core.rng import derive
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make


class Bridge(gymnasium.Env):  # type: ignore[type-arg]
    """One of our environments behind Gymnasium's API; episodes are seeded as our sampler seeds them."""

    def __init__(self, cfg: EnvConfig, seed: int, index: int = 0) -> None:
        self._env = make(cfg)
        self._seed, self._index, self._episode = seed, index, 0
        spec = self._env.spec
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, spec.obs_shape, np.float32)
        low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        self._is_choice = not spec.is_continuous
        self.action_space: Any = gymnasium.spaces.Box(low, high)
        if self._is_choice:
            self.action_space = gymnasium.spaces.Discrete(spec.action_choices[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode of this environment's stream."""
        obs = self._env.reset(derive(self._seed, "episode", self._index, self._episode))
        self._episode += 1
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        return self._env.step(np.array([action]) if self._is_choice else action)
