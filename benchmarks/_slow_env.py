"""A simulator that takes a known time per step without using the processor, as a robot or a remote one would."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np

STEP_S = float(os.environ.get("SLOW_STEP_S", "0.005"))


class Slow(gymnasium.Env):  # type: ignore[type-arg]
    """Sleeps, then returns what every step returns."""

    observation_space = gymnasium.spaces.Box(-1, 1, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        return np.zeros(17, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep for STEP_S."""
        time.sleep(STEP_S)
        return np.zeros(17, np.float32), 0.0, False, False, {}


gymnasium.register("Slow-v0", "_slow_env:Slow", max_episode_steps=1000)
