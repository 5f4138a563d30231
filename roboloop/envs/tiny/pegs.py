"""Pegs of which one is out of its hole: an action is a place to pick at and a way to move what was picked there."""

from __future__ import annotations

import math

import numpy as np

from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated

NUM_PEGS = 4
REACH = 0.4
"""A displacement of 1 moves a peg so far, on a table that reaches from -1 to 1."""
SNAP = 0.3
"""What is picked farther than this from any peg is a miss, and moves nothing."""
IN_HOLE = 0.15
HORIZON = 4
PIXELS = 32
NUM_CANDIDATES = 16
"""Pixels of pegs among which is chosen, where a picture is seen."""


class Pegs:
    """Pegs on a table; the reward is minus what all of them together are away from their holes."""

    def __init__(self, corners: bool, seen: bool) -> None:
        self._corners, self._seen = corners, seen
        turn = 2.0 * math.pi * np.arange(NUM_PEGS) / NUM_PEGS
        self._holes = 0.6 * np.stack((np.cos(turn), np.sin(turn)), axis=1)
        self._pegs = self._holes.copy()
        self._rng = stream(0, "pegs")
        self.pick_dim = NUM_PEGS if corners else 2
        candidates = NUM_CANDIDATES if seen else NUM_PEGS
        what = ("image", np.uint8, (3, PIXELS, PIXELS)) if seen else ("vector", np.float32, (2 * NUM_PEGS,))
        self.obs_dtype = np.dtype([what, ("picks", np.float16, (candidates, self.pick_dim))])

    def reset(self, seed: int) -> Array:
        """Put all pegs but one into their holes."""
        self._rng = stream(seed, "pegs")
        angle, length = self._rng.uniform((-math.pi, 0.25), (math.pi, 0.4))
        self._pegs = self._holes.copy()
        self._pegs[self._rng.integers(NUM_PEGS)] += length * np.array([math.cos(angle), math.sin(angle)])
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Pick and move."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        pick, move = np.split(action.astype(np.float64), [self.pick_dim])
        peg = int(pick.argmax()) if self._corners else self._nearest(pick)
        if peg is not None:
            self._pegs[peg] = np.clip(self._pegs[peg] + REACH * move, -0.95, 0.95)
        away = np.linalg.norm(self._pegs - self._holes, axis=1)
        return Outcome(self._obs(), -float(away.sum()), False, False, float(away.max() < IN_HOLE))

    def _nearest(self, place: Array) -> int | None:
        """Return the peg at a place; none is a miss."""
        distance = np.linalg.norm(self._pegs - place, axis=1)
        return int(distance.argmin()) if distance.min() < SNAP else None

    def _obs(self) -> Array:
        obs = np.zeros((), self.obs_dtype)
        if self._corners:
            obs["picks"] = 2.0 * np.eye(NUM_PEGS) - 1.0
        else:
            obs["picks"] = self._pixels_of_pegs() if self._seen else self._pegs
        if self._seen:
            obs["image"] = np.moveaxis(self._picture(1), -1, 0)
        else:
            obs["vector"] = self._pegs.ravel()
        return obs

    def _pixels_of_pegs(self) -> Array:
        """Return the centres of some pixels that show a peg, drawn anew in each step."""
        rows, columns = np.nonzero(self._picture(1)[..., 0])
        some = self._rng.integers(len(rows), size=NUM_CANDIDATES)
        return (np.stack((columns[some], rows[some]), axis=1) + 0.5) / PIXELS * 2.0 - 1.0

    def _picture(self, scale: int) -> Array:
        """Return pegs (white) over holes (green), ``[H, W, 3]``; the second coordinate points down."""
        size = scale * PIXELS
        picture = np.zeros((size, size, 3), np.uint8)
        for places, half, color in ((self._holes, 2 * scale, (0, 100, 0)), (self._pegs, scale, (255, 255, 255))):
            for column, row in ((places + 1.0) / 2.0 * size).astype(int):
                picture[max(0, row - half) : row + half + 1, max(0, column - half) : column + half + 1] = color
        return picture

    def render(self) -> Array:
        """Return a larger picture."""
        return self._picture(4)

    def get_state(self) -> State:
        """Return the pegs' places, and the draws that are to come."""
        return {"pegs": self._pegs.copy(), "rng": get_rng_state(self._rng)}

    def set_state(self, state: State) -> None:
        """Restore what ``get_state`` returned."""
        self._pegs = np.array(state["pegs"])
        set_rng_state(self._rng, state["rng"])

    def close(self) -> None:
        """Hold nothing."""


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``tiny/pegs``, ``tiny/pegs-corner`` (pegs are chosen by number) or ``tiny/pegs-seen`` (in a picture)."""
    world = Pegs(corners=task == "pegs-corner", seen=task == "pegs-seen")
    bounds = np.ones(world.pick_dim + 2)
    return EpisodeEnv(
        world,
        Task(
            obs_shape=(),
            obs_dtype=world.obs_dtype,
            action_low=-bounds,
            action_high=bounds,
            horizon=cfg.horizon(HORIZON, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": "tiny", "task": task, "pick": "corner" if task == "pegs-corner" else "point"},
        ),
    )
