"""Auxiliary tasks: one environment, K named tasks, and what a transition is worth to each of them.

Nothing but the transition is stored: rewards and successes are pure functions of it that live beside the environment,
so one transition trains all K intentions, and a learner needs no simulator to know them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from roboloop.core.tasks import task_index
from roboloop.core.types import Array, Env


class AuxiliaryTasks(Protocol):
    """The tasks of one environment; observations are single ones, never stacks, and arrays have N rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """K names, the main task first; the same as ``EnvSpec.tasks``."""
        ...

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``."""
        ...

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        ...


class Aimed:
    """An environment whose reward and success are those of one of its auxiliary tasks; all else is as it was."""

    def __init__(self, env: Env, tasks: AuxiliaryTasks, name: str) -> None:
        self._env, self._tasks = env, tasks
        self._column = task_index(name, tasks.names, "--schedule")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, seed: int) -> Array:
        """Begin an episode and return its first observation."""
        self._obs = self._env.reset(seed)
        return self._obs

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step, and judge it by the task."""
        obs, _, terminated, truncated, info = self._env.step(action)
        step = self._obs[None], np.asarray(action)[None], obs[None]
        reward, success = (f(*step)[0, self._column] for f in (self._tasks.task_rewards, self._tasks.task_successes))
        self._obs = obs
        judged = {**info, "raw_reward": float(reward), "success": float(success)}
        return obs, float(reward), terminated, truncated, judged
