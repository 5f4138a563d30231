"""Any Gymnasium environment with continuous actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roboloop.core.errors import ConfigError, MissingExtra, nearest
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task
from roboloop.envs.headless import prefer_egl
from roboloop.envs.replay import ReplayWorld

DEFAULT_HORIZON = 1000
"""For ids that register no limit of their own."""


class GymWorld(ReplayWorld):
    """A Gymnasium environment without its time limit; dict observations are flattened."""

    def __init__(self, env: gymnasium.Env[Any, Any], action_dim: int) -> None:
        super().__init__(action_dim)
        self._env = env
        self._flatten = not isinstance(env.observation_space, spaces.Box)

    def _obs(self, obs: Any) -> Array:
        return np.asarray(spaces.flatten(self._env.observation_space, obs) if self._flatten else obs)

    def start(self, seed: int) -> Array:
        """Start the simulator's episode."""
        obs, _ = self._env.reset(seed=seed)
        return self._obs(obs)

    def advance(self, action: Array) -> Outcome:
        """Advance by one control step."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        success = info.get("success", info.get("is_success"))
        known = None if success is None else float(success)
        return Outcome(self._obs(obs), float(reward), bool(terminated), bool(truncated), known)

    def render(self) -> Array:
        """Return the environment's own picture."""
        frame = self._env.render()
        if not isinstance(frame, np.ndarray):
            raise ConfigError(f"{self._env} gives no pictures")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


def _build(task: str) -> gymnasium.Env[Any, Any]:
    """Make the environment without a time limit, or say in one line why it cannot be made."""
    try:
        modes = getattr(gymnasium.envs.registration.load_env_creator(str(gymnasium.spec(task).entry_point)), "metadata", {})
        mode = "rgb_array" if "rgb_array" in modes.get("render_modes", ()) else None
        return gymnasium.make(task, render_mode=mode, max_episode_steps=-1, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"env 'gym/{task}' needs a package: {str(error).splitlines()[0]}") from error
    except gymnasium.error.Error as error:
        known = nearest(task, gymnasium.registry)
        raise ConfigError(f"unknown Gymnasium env {task!r}{known or ': ' + str(error).splitlines()[0]}") from error


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gym/<id>`` with our clock in place of Gymnasium's."""
    prefer_egl()
    env = _build(task)
    space, seen = env.action_space, env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"env 'gym/{task}' has actions {space}: continuous actions only")
    if not isinstance(seen, spaces.Box):
        seen = spaces.flatten_space(seen)
    limit = gymnasium.spec(task).max_episode_steps or DEFAULT_HORIZON
    return EpisodeEnv(
        GymWorld(env, space.shape[0]),
        Task(
            obs_shape=tuple(seen.shape or ()),
            obs_dtype="uint8" if seen.dtype == np.uint8 else "float32",
            action_low=space.low,
            action_high=space.high,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"gymnasium {gymnasium.__version__}", "task": task},
        ),
    )
