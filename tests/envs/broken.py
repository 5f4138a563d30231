"""Ten Gymnasium environments, each broken in one way, and one that is whole."""

import random
import sys
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class Whole(gymnasium.Env):
    """A point that is pushed along a line; everything about it is right."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _see(self):
        return np.array([self.place, self.goal], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal, self.clock = 0.0, self.np_random.uniform(-1, 1), 0
        return self._see(), {}

    def step(self, action):
        self.clock += 1
        self.place = float(np.clip(self.place + 0.1 * action[0], -2, 2))
        return self._see(), -abs(self.place - self.goal), False, False, {}

    def render(self):
        frame = np.zeros((8, 16, 3), np.uint8)
        frame[:, int(np.clip(8 + 4 * self.place, 0, 15))] = 255
        return frame


class NotFinite(Whole):
    def step(self, action):
        obs, *rest = super().step(action)
        obs[1] = np.nan
        return obs, *rest


class WrongShape(Whole):
    def _see(self):
        return np.array([self.place, self.goal, 0.0], np.float32)


class OldApi(Whole):
    def reset(self):
        super().reset(seed=0)
        return self._see()

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class OldReset(OldApi):
    def reset(self, *, seed=None, options=None):
        return super().reset()


class OldStep(OldApi):
    def reset(self, *, seed=None, options=None):
        return Whole.reset(self, seed=seed)


class Unseeded(Whole):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = np.random.default_rng().uniform(-1, 1)
        return self._see(), {}


class CrashAtStep50(Whole):
    def step(self, action):
        out = super().step(action)
        if self.clock == 50:
            raise RuntimeError("the gripper fell off")
        return out


class LyingSpaces(Whole):
    observation_space = spaces.Box(0, 0.01, (2,), np.float32)


class LyingActions(Whole):
    def step(self, action):
        if abs(action[0]) > 0.5:
            raise ValueError("the motor takes half of that")
        return super().step(action)


class NoRender(Whole):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def render(self):
        raise NotImplementedError


class HugeInfo(Whole):
    def step(self, action):
        *out, _ = super().step(action)
        return *out, {"pictures": np.zeros((10, 100, 100, 3), np.float32), "clock": self.clock}


class ExitsAtStep50(Whole):
    def step(self, action):
        if self.clock == 49:
            sys.exit(3)
        return super().step(action)


class ExitsInReset(Whole):
    def reset(self, *, seed=None, options=None):
        sys.exit(3)


class NoInfo(Whole):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], None


class LacksPart(Whole):
    observation_space = spaces.Dict({"q": spaces.Box(-9, 9, (2,)), "force": spaces.Box(-9, 9, (1,))})

    def _see(self):
        return {"q": super()._see()}


class SuccessInWords(Whole):
    def step(self, action):
        *out, _ = super().step(action)
        return *out, {"success": "yes"}


class SeesNothing(Whole):
    observation_space = spaces.Box(-1, 1, (0,), np.float32)

    def _see(self):
        return np.zeros(0, np.float32)


class FloatPicture(Whole):
    def render(self):
        return super().render() / 255


class OneColour(Whole):
    def render(self):
        return np.full((8, 16, 3), 99, np.uint8)


class Sleeps(Whole):
    def reset(self, *, seed=None, options=None):
        time.sleep(60)
        return super().reset(seed=seed)


class Slow(Whole):
    num_steps: ClassVar[list[int]] = [0]

    def step(self, action):
        self.num_steps[0] += 1
        time.sleep(0.02)
        return super().step(action)


class CrashInReset(Whole):
    def reset(self, *, seed=None, options=None):
        raise OSError("no scene file")


class Endless(Whole):
    """Registered without a limit."""


class Unbounded(Whole):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Inverted(Whole):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space.low[:], self.action_space.high[:] = 2, 1


class Sequences(Whole):
    observation_space = spaces.Sequence(spaces.Box(-1, 1, (2,)))


class Float64(Whole):
    def _see(self):
        return np.array([self.place, self.goal], np.float64)


class DrawsFromAll(Whole):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = np.random.uniform() + random.random() + float(torch.rand(()))
        return self._see(), {}


class Masked(Whole):
    """Raises when a choice that is not allowed is made."""

    action_space = spaces.Discrete(4)

    def _say(self):
        return {"action_mask": np.arange(4) % 2 == self.clock % 2}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._say()

    def step(self, action):
        if action % 2 != self.clock % 2:
            raise ValueError(f"{action} is not allowed")
        *out, _ = super().step([action / 3])
        return *out, self._say()


for made in (Whole, *Whole.__subclasses__(), OldReset, OldStep):
    limit = None if made is Endless else 200
    gymnasium.register(f"{made.__name__}-v0", f"tests.envs.broken:{made.__name__}", max_episode_steps=limit)
