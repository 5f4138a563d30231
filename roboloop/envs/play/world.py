"""A play world of our own, seen from the side: a hand, a block on the floor and a shelf. Some ten microseconds a step.

Its tasks build upon each other: reach, grasp, move, place, release. A random hand opens and closes all the time, so
it almost never carries the block anywhere, and placing it on the shelf must be learned from the other tasks. With a
perch instead of the shelf, short and somewhere else in each episode, all of it must be done more exactly.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.play.tasks import (
    CLOSED,
    FORMULAS,
    HOLDING,
    OPEN,
    PLATE_Y,
    STAND_Y,
    PlayTasks,
    Scene,
    is_over,
    is_reached,
    stand_of,
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
        self._stand = stand_of(main)
        self._scene = Scene(0.0, 0.0, OPEN, 0.0, 0.0)

    def reset(self, seed: int) -> Array:
        """Draw where the hand is, where the block lies, left of the stand, and where that is."""
        left, right = self._stand.x_range
        draw = stream(seed, "play").uniform((-0.9, 0.1, -0.8, left), (0.9, 0.7, 0.1, right))
        hand_x, hand_y, block_x, stand_x = (on_grid(x) for x in draw.tolist())
        scene = Scene(hand_x, hand_y, OPEN, block_x, 0.0)
        self._scene = scene._replace(stand_x=stand_x) if self._stand.is_seen else scene
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Move the hand, and open or close it."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        way_x, way_y, grip = action.tolist()
        before = self._scene
        x = on_grid(min(max(before.hand_x + SPEED * way_x, -SIDE), SIDE))
        y = on_grid(min(max(before.hand_y + SPEED * way_y, 0.0), TOP))
        if is_over(x, before.stand_x, self._stand) and (before.hand_y > PLATE_Y) != (y > PLATE_Y):
            y = before.hand_y  # the stand is in the way
        width = self._gripped(before._replace(hand_x=x, hand_y=y), grip)
        if width == HOLDING:
            scene = Scene(x, y, width, x, y, before.stand_x)
        else:
            scene = before._replace(hand_x=x, hand_y=y, width=width, block_y=self._fallen(before))
        self._scene = scene
        reward, success = self._reward(scene, self._stand), self._success(scene, self._stand)
        return Outcome(self._obs(), float(reward), False, False, float(success))

    def _fallen(self, scene: Scene) -> float:
        """Return the height of a loose block a step later."""
        is_held_up = is_over(scene.block_x, scene.stand_x, self._stand) and scene.block_y > PLATE_Y
        return float(max(scene.block_y - FALL, STAND_Y if is_held_up else 0.0))

    def _gripped(self, scene: Scene, grip: float) -> float:
        """Return the width after a wish to close (above 0) or to open; only a hand that closes now takes hold."""
        if grip <= 0:
            return OPEN
        if scene.width != OPEN:
            return float(scene.width)
        return HOLDING if is_reached(scene, self._stand) else CLOSED

    def _obs(self) -> Array:
        return np.array(self._scene.observation(self._stand), np.float32)

    def render(self) -> Array:
        """Return floor and stand (grey), block (orange) and hand (white; a frame where it is open)."""
        picture = np.zeros((_PIXELS, _PIXELS, 3), np.uint8)
        s = self._scene
        _draw(picture, s.stand_x, PLATE_Y + 0.01, self._stand.half, 0.02, (110, 110, 110))
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
            obs_shape=(stand_of(task).obs_size,),
            obs_dtype=FLOAT,
            action_low=-bound,
            action_high=bound,
            horizon=cfg.horizon(STEPS, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": "play", "task": task},
            tasks=tasks.names,
        ),
    )
