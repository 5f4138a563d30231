"""An arm with two cameras: the observation is a dict of two pictures, the joints and the gripper."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cameras(gymnasium.Env[Any, Any]):
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin somewhere in the middle, with a target anywhere."""
        super().reset(seed=seed)
        self.joints = np.zeros(2, np.float32)
        self.target = self.np_random.uniform(-1, 1, 2)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move both joints a little."""
        self.joints = np.clip(self.joints + 0.3 * action, -1, 1).astype(np.float32)
        distance = float(np.abs(self.joints - self.target).max())
        return self._see(), -distance, False, False, {"success": distance < 0.2}

    def _see(self) -> dict[str, Any]:
        across, up = ((self.target + 1) / 2 * (54, 38)).astype(int)
        wrist, front = np.zeros((64, 64, 3), np.uint8), np.zeros((48, 64, 1), np.uint8)
        wrist[:, across : across + 10, 0] = 255
        front[up : up + 10] = 255
        return {"wrist": wrist, "front": front, "joints": self.joints, "gripper": np.ones(1, np.float32)}


gymnasium.register("Cameras-v0", Cameras, max_episode_steps=12)
