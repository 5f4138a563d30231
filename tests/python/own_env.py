"""Environments of a user: classes and functions that are registered nowhere."""

from __future__ import annotations

import gymnasium
import numpy as np


class Steer(gymnasium.Env):
    """A point that is pushed to the middle; it ends by itself after 20 steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._at = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._at.copy(), {}

    def step(self, action):
        self._t += 1
        self._at = np.clip(self._at + 0.1 * action, -2, 2).astype(np.float32)
        return self._at.copy(), -float(np.abs(self._at).sum()), False, self._t >= 20, {}

    def render(self):
        return np.full((16, 16, 3), 7, np.uint8)


class Needy(Steer):
    """It cannot be made without an argument."""

    def __init__(self, size):
        super().__init__()


class PlusOne(gymnasium.ObservationWrapper):
    """A wrapper."""

    def observation(self, obs):
        return obs + 1


def twice(env):
    """Wrap by a function."""
    return gymnasium.wrappers.TransformObservation(env, lambda obs: 2 * obs, env.observation_space)


def pendulum():
    """Return somebody else's environment with a limit of its own."""
    return gymnasium.make("Pendulum-v1", max_episode_steps=25)


def nothing():
    """Return no environment."""
    return 3
