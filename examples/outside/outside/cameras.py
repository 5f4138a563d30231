"""An arm with two cameras: the observation is a dict of two pictures, the joints and the gripper."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Cameras(gymnasium.Env):
    """Point at a target: the wrist camera shows where it is across, the front camera how high it is."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict(
        {
            "wrist": spaces.Box(0, 255, (64, 64, 3), np.uint8),
            "front": spaces.Box(0, 255, (48, 64, 1), np.uint8),
            "joints": spaces.Box(-1, 1, (2,), np.float32),
            "gripper": spaces.Box(0, 1, (1,), np.float32),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.joints = np.zeros(2, np.float32)
        self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.see(), {}

    def step(self, action):
        self.joints = np.clip(self.joints + 0.3 * action, -1, 1).astype(np.float32)
        distance = float(np.abs(self.joints - self.target).max())
        return self.see(), -distance, False, False, {"success": distance < 0.2}

    def see(self):
        across, up = ((self.target + 1) / 2 * (54, 38)).astype(int)
        wrist, front = np.zeros((64, 64, 3), np.uint8), np.zeros((48, 64, 1), np.uint8)
        wrist[:, across : across + 10, 0] = 255
        front[up : up + 10] = 255
        return {"wrist": wrist, "front": front, "joints": self.joints.copy(), "gripper": np.ones(1, np.float32)}


gymnasium.register("Cameras-v0", Cameras, max_episode_steps=12)
