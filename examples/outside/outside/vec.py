"""A simulator that steps many environments by one call: points in a plane, in NumPy."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Points(VectorEnv[Any, Any, Any]):
    """Each column steers a point with inertia to a goal; all of them are rows of three arrays."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, num_envs: int, max_episode_steps: int = 50) -> None:
        self.num_envs, self.horizon = num_envs, max_episode_steps
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.place, self.speed, self.goal = (np.zeros((num_envs, 2)) for _ in range(3))
        self.clock = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episodes of all columns, or of those in the mask; each column has a seed of its own."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        for column in np.flatnonzero(mask):
            rng = np.random.default_rng(seeds[column])
            self.place[column], self.goal[column] = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        self.speed[mask] = 0
        self.clock[mask] = 0
        return self._see(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Push all points; the observations are those before any reset."""
        self.speed = 0.8 * self.speed + 0.1 * actions
        self.place = np.clip(self.place + self.speed, -1.5, 1.5)
        self.clock += 1
        distance = np.linalg.norm(self.place - self.goal, axis=1)
        truncated = self.clock >= self.horizon
        return self._see(), -distance, np.zeros_like(truncated), truncated, {"success": distance < 0.1}

    def _see(self) -> Any:
        return np.concatenate((self.place, self.speed, self.goal - self.place), axis=1).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        """Return all that the rest depends on, so that a resumed run is equal to one that never stopped."""
        return {name: getattr(self, name).copy() for name in ("place", "speed", "goal", "clock")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore it."""
        for name, values in state.items():
            getattr(self, name)[...] = values


gymnasium.register("Points-v0", vector_entry_point=Points, max_episode_steps=50)
