"""A policy without torch and environments that misbehave on demand; workers import both by name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roboloop.core.types import Decision


class LinearPolicy:
    """a = tanh(W obs + noise), with a value and a decaying memory: enough to notice every wrong bit."""

    def __init__(self, obs_dim: int, action_dim: int, memory_size: int = 2) -> None:
        self.memory_size, self.version = memory_size, 0
        self._sizes = obs_dim, action_dim
        self.weights = np.linspace(-1, 1, obs_dim * action_dim, dtype=np.float32).reshape(obs_dim, action_dim)

    def act(self, obs, memory, explore, rng) -> Decision:
        flat = obs.reshape(len(obs), -1)[:, -self._sizes[0] :]
        u = flat @ self.weights
        if explore:
            u = u + rng.standard_normal(u.shape, dtype=np.float32)
        memory = 0.5 * memory + flat[:, :1]
        return Decision(np.tanh(u), memory.astype(np.float32), -(u**2).sum(1), flat.sum(1) + memory.sum(1))

    def improve(self) -> None:
        self.weights = self.weights * np.float32(0.9)
        self.version += 1

    def blueprint(self) -> dict[str, Any]:
        return {"kind": "tests.sample.kit:LinearPolicy", "sizes": list(self._sizes), "memory_size": self.memory_size}

    @classmethod
    def from_blueprint(cls, data):
        return cls(*data["sizes"], data["memory_size"])

    @property
    def num_weights(self) -> int:
        return self.weights.size

    def write_weights(self, out) -> None:
        out[:] = self.weights.ravel()

    def read_weights(self, flat, version) -> None:
        self.weights, self.version = flat.reshape(self._sizes).copy(), version


class Misbehaving(gymnasium.Env):
    """Counts steps; does what its id says at one step of one episode, once per flag file in MISBEHAVE."""

    observation_space = spaces.Box(-1e3, 1e3, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, how: str = "well", **_: Any) -> None:
        self._how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def _obs(self):
        return np.array([self._t, self.np_random.random(), 1.0], np.float32)

    def step(self, action):
        self._t += 1
        obs = self._obs()
        if self._t == 4 and self._how not in ("well", "leak") and self._my_turn():
            if self._how == "raise":
                raise RuntimeError("the gripper fell off")
            if self._how == "nan":
                return obs * np.nan, 0.0, False, False, {}
            if self._how == "nan-reward":
                return obs, float("nan"), False, False, {}
            if self._how == "shape":
                return np.zeros(5, np.float32), 0.0, False, False, {}
            if self._how == "hang":
                time.sleep(3600)
            if self._how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "leak":
            self.__dict__.setdefault("hoard", []).append(bytearray(4_000_000))
        return obs, float(self._t), False, False, {}

    @staticmethod
    def _my_turn() -> bool:
        """Take one of the permits that the test laid out; they end, so that the successor behaves."""
        for name in sorted(os.listdir(os.environ["MISBEHAVE"])):
            try:
                os.unlink(os.path.join(os.environ["MISBEHAVE"], name))
                return True
            except FileNotFoundError:
                continue
        return False


class Big(Misbehaving):
    """Sees 0.8 MB at a time."""

    observation_space = spaces.Box(-1e3, 1e3, (200_000,), np.float32)

    def _obs(self):
        return np.full(200_000, self._t, np.float32)


class Filmed(Misbehaving):
    """Sees a picture beside its numbers."""

    observation_space = spaces.Dict({
        "eye": spaces.Box(0, 255, (8, 8, 3), np.uint8), "count": spaces.Box(-1e3, 1e3, (3,), np.float32),
    })  # fmt: skip

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return self._with_picture(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return self._with_picture(obs), *rest

    @staticmethod
    def _with_picture(obs):
        return {"eye": np.full((8, 8, 3), 7, np.uint8), "count": obs}


gymnasium.register("Filmed-v0", "tests.sample.kit:Filmed", kwargs={"how": "nan"}, max_episode_steps=10)
for _how in ("well", "raise", "nan", "nan-reward", "shape", "hang", "die", "leak"):
    gymnasium.register(
        f"Misbehave-{_how}-v0", "tests.sample.kit:Misbehaving", kwargs={"how": _how}, max_episode_steps=10
    )
gymnasium.register("Big-v0", "tests.sample.kit:Big", max_episode_steps=10)


class SteadyPolicy(LinearPolicy):
    """The same without noise, memory or probabilities, as if learned off-policy."""

    def __init__(self, obs_dim: int, action_dim: int, memory_size: int = 0) -> None:
        super().__init__(obs_dim, action_dim, memory_size)

    def act(self, obs, memory, explore, rng) -> Decision:
        return Decision(np.tanh(obs.reshape(len(obs), -1)[:, -self._sizes[0] :] @ self.weights), memory)

    def blueprint(self) -> dict[str, Any]:
        return {**super().blueprint(), "kind": "tests.sample.kit:SteadyPolicy"}
