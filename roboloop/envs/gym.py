"""Any Gymnasium environment with continuous actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from roboloop.core.errors import ConfigError, MissingExtra, nearest
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task
from roboloop.envs.headless import quick_pictures
from roboloop.envs.replay import ReplayWorld

DEFAULT_HORIZON = 1000
"""For ids that register no limit of their own."""


class GymWorld(ReplayWorld):
    """A Gymnasium environment without its time limit; dict observations are flattened."""

    def __init__(self, env: gymnasium.Env[Any, Any], action_dim: int) -> None:
        super().__init__(action_dim)
        self._env = env
        if hasattr(env.unwrapped, "model") and hasattr(env.unwrapped.model, "mat_reflectance"):
            quick_pictures(env.unwrapped.model)
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
        try:
            frame = self._env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingExtra(f"pictures of this env need a package: {error}") from error
        if not isinstance(frame, np.ndarray):
            raise ConfigError(f"{self._env} gives no pictures")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


def _render_mode(task: str) -> dict[str, Any]:
    """Return the keyword that gives pictures, if the environment has them; older ones do not know the keyword."""
    entry = gymnasium.spec(task).entry_point
    maker = load_env_creator(entry) if isinstance(entry, str) else entry
    pictures = "rgb_array" in getattr(maker, "metadata", {}).get("render_modes", ())
    return {"render_mode": "rgb_array"} if pictures else {}


def _build(task: str) -> gymnasium.Env[Any, Any]:
    """Make the environment without a time limit, or say in one line why it cannot be made."""
    try:
        return gymnasium.make(task, max_episode_steps=-1, disable_env_checker=True, **_render_mode(task))
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"env 'gym/{task}' needs a package: {str(error).splitlines()[0]}") from error
    except gymnasium.error.Error as error:
        known = nearest(task, gymnasium.registry)
        raise ConfigError(f"unknown Gymnasium env {task!r}{known or ': ' + str(error).splitlines()[0]}") from error


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gym/<id>`` with our clock in place of Gymnasium's."""
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
