"""DM Control tasks, from state or from pixels."""

from __future__ import annotations

import math
from importlib import metadata
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.config import ViewEnvConfig
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.headless import Camera, check_backend, quick_pictures
from roboloop.envs.replay import ReplayWorld

RENDER_SIZE = 240
IMAGE_SIZE = (64, 64)
UNSEEN = np.zeros(0, np.float32)
"""Stands for the observation within an action: nobody looks at it."""


class DmcWorld(ReplayWorld):
    """A DM Control task without its time limit; seen as one vector of all observations, or by its first camera."""

    def __init__(self, env: Any, action_dim: int, image_size: tuple[int, int] | None) -> None:
        super().__init__(action_dim)
        self._env = env
        env._step_limit = math.inf  # the clock is ours
        model = env.physics.model
        quick_pictures(model)
        self._camera = None if image_size is None else Camera(model.ptr, image_size, min(0, model.ncam - 1))

    def _obs(self, observation: dict[str, Any]) -> Array:
        if self._camera is None:
            return np.concatenate([np.ravel(value) for value in observation.values()])
        picture: Array = self._camera.look(self._env.physics.data.ptr)
        return picture

    def start(self, seed: int) -> Array:
        """Start the episode; the task's generator is replaced, so nothing of the last one survives."""
        self._env.task._random = np.random.RandomState(seed % 2**32)
        return self._obs(self._env.reset().observation)

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps; only where they lead is looked at."""
        out = repeated(self._tick, action, repeat)
        return out._replace(obs=self._obs(self._observation))

    def _tick(self, action: Array) -> Outcome:
        """Advance by one control step; discount zero means that the world ended."""
        step = self._env.step(action.astype(np.float64))
        self._observation = step.observation
        terminated = step.last() and step.discount == 0.0
        return Outcome(UNSEEN, float(step.reward), terminated, step.last() and not terminated, None)

    def render(self) -> Array:
        """Return the first camera's picture."""
        check_backend()
        frame: Array = self._env.physics.render(
            RENDER_SIZE, RENDER_SIZE, camera_id=min(0, self._env.physics.model.ncam - 1)
        )
        return frame

    def close(self) -> None:
        """Release the simulator."""
        if self._camera is not None:
            self._camera.close()
        self._env.close()


def _load(task: str) -> Any:
    """Load ``<domain>-<task>`` or name the nearest one."""
    from dm_control import suite

    domain, _, name = task.partition("-")
    if (domain, name) not in suite.ALL_TASKS:
        known = nearest(task, (f"{d}-{t}" for d, t in suite.ALL_TASKS))
        raise ConfigError(f"unknown DM Control task {task!r}{known}")
    return suite.load(domain, name, task_kwargs={"random": 0})


def make(task: str, cfg: ViewEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``dmc/<domain>-<task>``."""
    env = _load(task)
    limit = int(env._step_limit) if math.isfinite(env._step_limit) else 1000
    action = env.action_spec()
    size = (cfg.image_size or IMAGE_SIZE) if cfg.observe == "pixels" else None
    shape: tuple[int, ...] = (3, *size) if size else (_num_observed(env),)
    view = {"observation": f"rgb {size[0]}x{size[1]}"} if size else {}
    return EpisodeEnv(
        DmcWorld(env, action.shape[0], size),
        Task(
            obs_shape=shape,
            obs_dtype=np.dtype(np.uint8) if size else FLOAT,
            action_low=action.minimum,
            action_high=action.maximum,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"dm_control {metadata.version('dm_control')}", "task": task, **view},
        ),
    )


def _num_observed(env: Any) -> int:
    return sum(int(np.prod(spec.shape)) for spec in env.observation_spec().values())
