"""Any Gymnasium environment whose actions are bounded numbers or choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from roboloop.core.errors import ConfigError, MissingExtra
from roboloop.core.fields import MASK
from roboloop.core.types import Array
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.gym import source
from roboloop.envs.gym.suite import ATARI, GymEnvConfig
from roboloop.envs.headless import check_backend, quick_pictures
from roboloop.envs.replay import ReplayWorld
from roboloop.envs.spaces import Observations, columns, decoder, observations

DEFAULT_HORIZON = 1000
"""For ids that register no limit of their own."""
SUCCESS = ("success", "is_success")
"""Names of the success in an info."""


class GymWorld(ReplayWorld):
    """A Gymnasium environment without its time limit."""

    def __init__(
        self,
        task: str,
        make: Callable[[], gymnasium.Env[Any, Any]],
        env: gymnasium.Env[Any, Any],
        action_dim: int,
        seen: Observations,
    ) -> None:
        super().__init__(action_dim)
        self._task, self._make, self._env = task, make, env
        # Box2D's solver remembers earlier episodes of its world, so that a seed would not determine the next one
        self._remembers = type(getattr(env.unwrapped, "world", None)).__name__ == "b2World"
        self._read, self._decode = seen.read, decoder(env.action_space)
        model = getattr(env.unwrapped, "model", None)
        self._is_mujoco = hasattr(model, "mat_reflectance")
        if self._is_mujoco:
            quick_pictures(model)

    def start(self, seed: int) -> Array:
        """Start the simulator's episode, in a new simulator where the old one's past would show."""
        if self._remembers:
            self._env.close()
            self._env = self._make()
        return self._read(*self._env.reset(seed=seed))

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return repeated(self._tick, self._decode(action), repeat)

    def _tick(self, action: Any) -> Outcome:
        obs, reward, terminated, truncated, info = self._env.step(action)
        success = next((info[name] for name in SUCCESS if name in info), None)
        known = None if success is None else float(success)
        return Outcome(self._read(obs, info), float(reward), bool(terminated), bool(truncated), known)

    def render(self) -> Array:
        """Return the environment's own picture."""
        if self._is_mujoco:
            check_backend()
        try:
            frame = self._env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingExtra(f"pictures of this env need a package: {error}") from error
        except NotImplementedError:
            frame = None
        if not isinstance(frame, np.ndarray):
            raise ConfigError(f"env 'gym/{self._task}' gives no pictures: it has no render mode 'rgb_array'")
        if frame.dtype.kind not in "bui":
            raise ConfigError(f"env 'gym/{self._task}' gives pictures of {frame.dtype}: return uint8, 0 to 255")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


def raw(task: str, cfg: GymEnvConfig) -> tuple[gymnasium.Env[Any, Any], int | None]:
    """Return an environment as its author wrote it, and the limit of its episodes; ``envs check`` looks at that."""
    found = source.find(task, cfg)
    env = found.make()
    return env, found.limit_of(env)


def _first_info(env: gymnasium.Env[Any, Any], choices: tuple[int, ...]) -> Mapping[str, Any]:
    """Return what the environment says of itself at a reset; only choices can be masked, so only they need one."""
    return env.reset(seed=0)[1] if any(choices) else {}


def make(task: str, cfg: GymEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gym/<id>`` with our clock in place of Gymnasium's."""
    if task.startswith(ATARI):
        from roboloop.envs.gym.atari import make as make_atari

        return make_atari(task, cfg, evaluation)
    found = source.find(task, cfg)
    env = found.make()
    low, high, choices = columns(env.action_space)
    seen = observations(env.observation_space, choices, mask_in_info=MASK in _first_info(env, choices))
    limit = found.limit_of(env) or DEFAULT_HORIZON
    return EpisodeEnv(
        GymWorld(task, found.make, env, len(low), seen),
        Task(
            obs_shape=seen.shape,
            obs_dtype=seen.dtype,
            action_low=low,
            action_high=high,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"gymnasium {gymnasium.__version__}", "task": task.rpartition(":")[2]},
            action_choices=choices,
        ),
    )
