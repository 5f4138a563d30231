"""Tasks of our own that take microseconds: for tests, first steps, and whether a method can do a thing at all."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, World, repeated
from roboloop.envs.tiny import cart, pegs
from roboloop.envs.tiny.suite import CARTS, PEGS

NUM_CUES = 4
RECALL_STEPS = 12
POINT_STEPS = 10
REACHED = 0.05


class Recall:
    """Shows one of four cues at first; the last action must name it. Without memory, one in four is luck."""

    def __init__(self) -> None:
        self._cue = self._t = 0

    def reset(self, seed: int) -> Array:
        """Draw the cue."""
        self._cue, self._t = int(np.random.default_rng(seed).integers(NUM_CUES)), 0
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Wait; in the last step, answer."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        self._t += 1
        is_last = self._t == RECALL_STEPS
        right = float(is_last and int(action[0]) == self._cue)
        return Outcome(self._obs(), right, is_last, False, right if is_last else None)

    def _obs(self) -> Array:
        """Return the cue at the start, and a sign that the answer is due."""
        obs = np.zeros(NUM_CUES + 1, np.float32)
        obs[self._cue] = float(self._t == 0)
        obs[-1] = float(self._t == RECALL_STEPS - 1)
        return obs

    def render(self) -> Array:
        """Return the observation as grey bars."""
        bars: Array = np.repeat(np.repeat((self._obs() * 255).astype(np.uint8)[None, :, None], 32, 0), 3, 2)
        return np.repeat(bars, 16, 1)

    def get_state(self) -> State:
        """Return cue and time."""
        return {"cue": self._cue, "t": self._t}

    def set_state(self, state: State) -> None:
        """Restore cue and time."""
        self._cue, self._t = int(state["cue"]), int(state["t"])

    def close(self) -> None:
        """Hold nothing."""


class Point:
    """A point on a line moves by up to 0.2 a step; the reward is minus its distance to the goal."""

    def __init__(self, sign: float = 1.0) -> None:
        self._x = self._goal = 0.0
        self._sign = sign

    def reset(self, seed: int) -> Array:
        """Draw place and goal."""
        self._x, self._goal = (float(x) for x in np.random.default_rng(seed).uniform(-1, 1, 2))
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Move."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        self._x += self._sign * float(action[0])
        distance = abs(self._x - self._goal)
        return Outcome(self._obs(), -distance, False, False, float(distance < REACHED))

    def _obs(self) -> Array:
        return np.array([self._x, self._goal], np.float32)

    def render(self) -> Array:
        """Return the line with point (white) and goal (green)."""
        picture = np.zeros((32, 128, 3), np.uint8)
        for place, color in ((self._goal, (0, 255, 0)), (self._x, (255, 255, 255))):
            column = int(np.clip((place + 1.5) / 3 * 127, 1, 126))
            picture[8:24, column - 1 : column + 2] = color
        return picture

    def get_state(self) -> State:
        """Return place and goal."""
        return {"x": self._x, "goal": self._goal}

    def set_state(self, state: State) -> None:
        """Restore place and goal."""
        self._x, self._goal = float(state["x"]), float(state["goal"])

    def close(self) -> None:
        """Hold nothing."""


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``tiny/<task>``."""
    if task in CARTS:
        return cart.make(task, cfg, evaluation)
    if task in PEGS:
        return pegs.make(task, cfg, evaluation)
    world: World
    choices: tuple[int, ...] = ()
    if task == "recall":
        world, choices = Recall(), (NUM_CUES,)
        shape, low, high, horizon = (NUM_CUES + 1,), [0.0], [NUM_CUES - 1.0], RECALL_STEPS
    else:
        world = Point(-1.0 if task == "mirror" else 1.0)
        shape, low, high, horizon = (2,), [-0.2], [0.2], POINT_STEPS
    return EpisodeEnv(
        world,
        Task(
            obs_shape=shape,
            obs_dtype=np.dtype(np.float32),
            action_low=np.array(low),
            action_high=np.array(high),
            horizon=cfg.horizon(horizon, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": "tiny", "task": task},
            action_choices=choices,
        ),
    )
