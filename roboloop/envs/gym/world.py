"""Any Gymnasium environment whose actions are bounded numbers or choices."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from roboloop.core.errors import ConfigError, MissingExtra, nearest
from roboloop.core.fields import MASK
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.headless import check_backend, quick_pictures
from roboloop.envs.replay import ReplayWorld
from roboloop.envs.spaces import Observations, columns, decoder, observations

DEFAULT_HORIZON = 1000
"""For ids that register no limit of their own."""
ATARI = "ALE/"


class GymWorld(ReplayWorld):
    """A Gymnasium environment without its time limit."""

    def __init__(self, task: str, env: gymnasium.Env[Any, Any], action_dim: int, seen: Observations) -> None:
        super().__init__(action_dim)
        self._task, self._env = task, env
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
            self._env = _build(self._task)
        return self._read(*self._env.reset(seed=seed))

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return repeated(self._tick, self._decode(action), repeat)

    def _tick(self, action: Any) -> Outcome:
        obs, reward, terminated, truncated, info = self._env.step(action)
        success = info.get("success", info.get("is_success"))
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
        reason = str(error).splitlines()[0]
        wanted = "pip install 'roboloop[box2d]'" if "box2d" in reason.lower() else reason
        raise MissingExtra(f"env 'gym/{task}' needs a package: {wanted}") from error
    except gymnasium.error.Error as error:
        known = nearest(task, gymnasium.registry)
        raise ConfigError(f"unknown Gymnasium env {task!r}{known or ': ' + str(error).splitlines()[0]}") from error


def _registered(task: str) -> str:
    """Return the id of ``module:Id`` after importing the module that registers it; a plain id as it is."""
    module, _, name = task.rpartition(":")
    if module:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"env 'gym/{task}' cannot be made: {module!r} is no name of a module")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"env 'gym/{task}' cannot be made: {error}") from None
    return name


def raw(task: str) -> tuple[gymnasium.Env[Any, Any], int | None]:
    """Return an environment as its author wrote it, and the limit of its episodes; ``envs check`` looks at that."""
    name = _registered(task)
    return _build(name), gymnasium.spec(name).max_episode_steps


def _first_info(env: gymnasium.Env[Any, Any], choices: tuple[int, ...]) -> Mapping[str, Any]:
    """Return what the environment says of itself at a reset; only choices can be masked, so only they need one."""
    return env.reset(seed=0)[1] if any(choices) else {}


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gym/<id>`` with our clock in place of Gymnasium's."""
    if task.startswith(ATARI):
        from roboloop.envs.gym.atari import make as make_atari

        return make_atari(task, cfg, evaluation)
    task = _registered(task)
    env = _build(task)
    low, high, choices = columns(env.action_space)
    seen = observations(env.observation_space, choices, mask_in_info=MASK in _first_info(env, choices))
    limit = gymnasium.spec(task).max_episode_steps or DEFAULT_HORIZON
    return EpisodeEnv(
        GymWorld(task, env, len(low), seen),
        Task(
            obs_shape=seen.shape,
            obs_dtype=seen.dtype,
            action_low=low,
            action_high=high,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"gymnasium {gymnasium.__version__}", "task": task},
            action_choices=choices,
        ),
    )
