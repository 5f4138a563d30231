"""A play world of our own, seen from the side: a hand, a block on the floor and a shelf. Some ten microseconds a step.

Its tasks build upon each other: reach, grasp, move, place, release. A random hand opens and closes all the time, so
it almost never carries the block anywhere, and placing it on the shelf must be learned from the other tasks.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.play_tasks import (
    CLOSED,
    FORMULAS,
    HOLDING,
    OBS_SIZE,
    OPEN,
    PLATE_Y,
    SHELF_HALF,
    SHELF_X,
    SHELF_Y,
    PlayTasks,
    Scene,
    is_reached,
    over_shelf,
)

STEPS = 100
SPEED = 0.1
"""Way of the hand along each axis in one step, at most."""
FALL = 0.125
"""Way of a block that nothing holds in one step."""
SIDE, TOP = 1.0, 1.0
"""The hand stays within -SIDE and SIDE, and between the floor and TOP."""
GRID = 65536.0
_PIXELS = 96


def on_grid(x: float) -> float:
    """Return the nearest place of a grid whose numbers float32 holds exactly: what is seen is all that there is."""
    return round(x * GRID) / GRID


class Play:
    """The world of one main task."""

    def __init__(self, main: str) -> None:
        self._reward, self._success = FORMULAS[main]
        self._scene = Scene(0.0, 0.0, OPEN, 0.0, 0.0)

    def reset(self, seed: int) -> Array:
        """Draw where the hand is, and where the block lies: left of the shelf."""
        draw = stream(seed, "play").uniform((-0.9, 0.1, -0.8), (0.9, 0.7, 0.1))
        hand_x, hand_y, block_x = (on_grid(x) for x in draw.tolist())
        self._scene = Scene(hand_x, hand_y, OPEN, block_x, 0.0)
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Move the hand, and open or close it."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        way_x, way_y, grip = action.tolist()
        before = self._scene
        x = on_grid(min(max(before.hand_x + SPEED * way_x, -SIDE), SIDE))
        y = on_grid(min(max(before.hand_y + SPEED * way_y, 0.0), TOP))
        if over_shelf(x) and (before.hand_y > PLATE_Y) != (y > PLATE_Y):
            y = before.hand_y  # the shelf is in the way
        width = self._gripped(before._replace(hand_x=x, hand_y=y), grip)
        if width == HOLDING:
            self._scene = Scene(x, y, width, x, y)
        else:
            self._scene = Scene(x, y, width, before.block_x, _fallen(before.block_x, before.block_y))
        scene = self._scene
        return Outcome(self._obs(), float(self._reward(scene)), False, False, float(self._success(scene)))

    @staticmethod
    def _gripped(scene: Scene, grip: float) -> float:
        """Return the width after a wish to close (above 0) or to open; only a hand that closes now takes hold."""
        if grip <= 0:
            return OPEN
        if scene.width != OPEN:
            return float(scene.width)
        return HOLDING if is_reached(scene) else CLOSED

    def _obs(self) -> Array:
        return np.array(self._scene.observation(), np.float32)

    def render(self) -> Array:
        """Return floor and shelf (grey), block (orange) and hand (white; a frame where it is open)."""
        picture = np.zeros((_PIXELS, _PIXELS, 3), np.uint8)
        s = self._scene
        _draw(picture, SHELF_X, PLATE_Y + 0.01, SHELF_HALF, 0.02, (110, 110, 110))
        _draw(picture, 0.0, -0.1, SIDE + 0.1, 0.04, (110, 110, 110))
        _draw(picture, s.block_x, s.block_y, 0.06, 0.06, (240, 140, 20))
        _draw(picture, s.hand_x, s.hand_y, 0.04, 0.03, (255, 255, 255))
        if s.width == OPEN:
            _draw(picture, s.hand_x, s.hand_y, 0.02, 0.015, (0, 0, 0))
        return picture

    def get_state(self) -> State:
        """Return the scene."""
        return {"scene": list(self._scene)}

    def set_state(self, state: State) -> None:
        """Restore the scene."""
        self._scene = Scene(*(float(x) for x in state["scene"]))

    def close(self) -> None:
        """Hold nothing."""


def _fallen(x: float, y: float) -> float:
    """Return the height of a loose block a step later."""
    support = SHELF_Y if over_shelf(x) and y > PLATE_Y else 0.0
    return max(y - FALL, support)


def _draw(picture: Array, x: float, y: float, half_x: float, half_y: float, color: tuple[int, int, int]) -> None:
    """Fill a rectangle; the picture shows from -1.1 to 1.1, and from -0.15 to 1.05."""
    scale_x, scale_y = _PIXELS / 2.2, _PIXELS / 1.2
    left, right = (int((edge + 1.1) * scale_x) for edge in (x - half_x, x + half_x))
    top, bottom = (int((1.05 - edge) * scale_y) for edge in (y + half_y, y - half_y))
    picture[max(top, 0) : bottom + 1, max(left, 0) : right + 1] = color


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``play/<main task>``."""
    tasks = PlayTasks(task)
    bound = np.ones(3, np.float32)
    return EpisodeEnv(
        Play(task),
        Task(
            obs_shape=(OBS_SIZE,),
            obs_dtype=FLOAT,
            action_low=-bound,
            action_high=bound,
            horizon=cfg.horizon(STEPS, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": "play", "task": task},
            tasks=tasks.names,
        ),
    )
