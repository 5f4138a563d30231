"""Our environments as Gymnasium's: spaces, seeds and pictures, for whoever trains with something else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roboloop.core.fields import MASK
from roboloop.core.types import Array, Env, EnvSpec
from roboloop.envs.env import FLOAT
from roboloop.envs.spaces import Space, encode

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
_MOST_SEED = 2**31


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One of our environments; episodes are truncated by its own clock, so that no ``TimeLimit`` is needed."""

    metadata = METADATA

    def __init__(self, env: Env, render_mode: str | None = None) -> None:
        self.env, self.render_mode = env, render_mode
        self.observation_space = observation_space(env.spec)
        self.action_space = action_space(env.spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode of this seed; without one, of the next that follows from the last seed given."""
        super().reset(seed=seed)
        episode = int(self.np_random.integers(_MOST_SEED)) if seed is None else seed
        return seen(self.env.reset(episode)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action; the info holds ``success`` where the environment knows it."""
        obs, reward, terminated, truncated, info = self.env.step(encode(self.action_space, action))
        return seen(obs), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return the picture, ``[H, W, 3]`` uint8, with ``render_mode="rgb_array"``."""
        return self.env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Release the simulator."""
        self.env.close()


def observation_space(spec: EnvSpec) -> Space:
    """Return the space of an environment's observations: a box, or a dict of the fields of a record."""
    if spec.obs_dtype.names is None:
        return _box(spec.obs_dtype, spec.obs_shape)
    parts = {name: spec.obs_dtype[name] for name in spec.obs_dtype.names}
    return spaces.Dict({name: _box(part.base, part.shape) for name, part in parts.items()})


def _box(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Space:
    if dtype.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


def action_space(spec: EnvSpec) -> Space:
    """Return the space of an environment's actions: a box, choices, or a tuple where there are both."""
    low, high = np.asarray(spec.action_low, FLOAT), np.asarray(spec.action_high, FLOAT)
    if spec.is_continuous:
        return spaces.Box(low, high)
    choices = spec.action_choices
    if all(choices):
        return spaces.Discrete(choices[0]) if len(choices) == 1 else spaces.MultiDiscrete(list(choices))
    cuts = [0, *(k for k in range(1, len(choices)) if (choices[k] > 0) != (choices[k - 1] > 0)), len(choices)]
    parts: list[Space] = []
    for begin, end in pairwise(cuts):
        counts = list(choices[begin:end])
        parts.append(spaces.MultiDiscrete(counts) if counts[0] else spaces.Box(low[begin:end], high[begin:end]))
    return spaces.Tuple(parts)


def seen(obs: Array) -> Any:
    """Return one observation as its space has it."""
    if obs.dtype.names is None:
        return obs
    return {name: np.array(obs[name], np.int8) if name == MASK else np.array(obs[name]) for name in obs.dtype.names}
