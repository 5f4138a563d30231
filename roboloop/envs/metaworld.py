"""Meta-World v3."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task
from roboloop.envs.headless import prefer_egl
from roboloop.envs.replay import ReplayWorld


class W(ReplayWorld):
    def __init__(self, task: str, reward_version: str, goal_seed: int | None) -> None:
        super().__init__(4)
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        env = ALL_V3_ENVIRONMENTS[task](reward_function_version=reward_version, render_mode="rgb_array", camera_name="corner2")
        env._partially_observable = False
        del env.sawyer_observation_space
        env._set_task_called = True
        env.seeded_rand_vec = True
        env.max_path_length = 10**9
        self._env: Any = env
        self._goal_seed = goal_seed

    def start(self, seed: int) -> Array:
        self._env.seed(seed if self._goal_seed is None else self._goal_seed)
        self._env._freeze_rand_vec = False
        self._env.reset()
        self._env._freeze_rand_vec = True
        obs: Array = self._env.reset()[0]
        return obs

    def advance(self, action: Array) -> Outcome:
        obs, reward, _, _, info = self._env.step(action)
        return Outcome(obs, float(reward), False, False, float(info["success"]))

    def render(self) -> Array:
        return np.asarray(self._env.render())

    def close(self) -> None:
        self._env.close()


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``metaworld/<task>``."""
    prefer_egl()
    return EpisodeEnv(
        W(task, cfg.reward_version, None if cfg.goal_mode == "random" else 0),
        Task((39,), "float32", -np.ones(4), np.ones(4), cfg.horizon(500, evaluation), cfg.action_repeat,
             {"suite": f"metaworld {metadata.version('metaworld')}", "task": task, "reward_version": cfg.reward_version, "goal_mode": cfg.goal_mode}),
    )
