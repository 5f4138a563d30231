"""DM Control tasks from state observations."""

from __future__ import annotations

import math
from importlib import metadata
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.headless import quick_pictures
from roboloop.envs.replay import ReplayWorld

RENDER_SIZE = 240


class DmcWorld(ReplayWorld):
    """A DM Control task without its time limit; all observations are joined into one vector."""

    def __init__(self, env: Any, action_dim: int) -> None:
        super().__init__(action_dim)
        self._env = env
        env._step_limit = math.inf  # the clock is ours
        quick_pictures(env.physics.model)

    @staticmethod
    def _obs(observation: dict[str, Any]) -> Array:
        return np.concatenate([np.ravel(value) for value in observation.values()])

    def start(self, seed: int) -> Array:
        """Start the episode; the task's generator is replaced, so nothing of the last one survives."""
        self._env.task._random = np.random.RandomState(seed % 2**32)
        return self._obs(self._env.reset().observation)

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        """Advance by one control step; discount zero means that the world ended."""
        step = self._env.step(action.astype(np.float64))
        terminated = step.last() and step.discount == 0.0
        return Outcome(
            self._obs(step.observation), float(step.reward), terminated, step.last() and not terminated, None
        )

    def render(self) -> Array:
        """Return the first camera's picture."""
        frame: Array = self._env.physics.render(
            RENDER_SIZE, RENDER_SIZE, camera_id=min(0, self._env.physics.model.ncam - 1)
        )
        return frame

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


def _load(task: str) -> Any:
    """Load ``<domain>-<task>`` or name the nearest one."""
    from dm_control import suite

    domain, _, name = task.partition("-")
    if (domain, name) not in suite.ALL_TASKS:
        known = nearest(task, (f"{d}-{t}" for d, t in suite.ALL_TASKS))
        raise ConfigError(f"unknown DM Control task {task!r}{known}")
    return suite.load(domain, name, task_kwargs={"random": 0})


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``dmc/<domain>-<task>``."""
    env = _load(task)
    limit = int(env._step_limit) if math.isfinite(env._step_limit) else 1000
    action = env.action_spec()
    size = sum(int(np.prod(spec.shape)) for spec in env.observation_spec().values())
    return EpisodeEnv(
        DmcWorld(env, action.shape[0]),
        Task(
            obs_shape=(size,),
            obs_dtype=FLOAT,
            action_low=action.minimum,
            action_high=action.maximum,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"dm_control {metadata.version('dm_control')}", "task": task},
        ),
    )
