"""An environment that sees noise: nothing of it can be compressed, so that a small budget is full at once."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Noise(gymnasium.Env):
    observation_space = spaces.Box(-1e3, 1e3, (250,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def _obs(self):
        return self.np_random.random(250, dtype=np.float32)

    def step(self, action):
        return self._obs(), float(self.np_random.random()), False, False, {}


gymnasium.register("Noise-v0", "tests.faults.noise_env:Noise", max_episode_steps=20)
