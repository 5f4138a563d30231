"""Rope or cloth as a world: an action picks a place of the object and moves it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, State
from roboloop.envs.env import FLOAT, EpisodeEnv, Info, Outcome
from roboloop.envs.headless import Camera
from roboloop.envs.soft import starts
from roboloop.envs.soft.config import CHOSEN, SoftConfig
from roboloop.envs.soft.physics import Physics
from roboloop.envs.soft.picks import Picks
from roboloop.envs.soft.rewards import Judge
from roboloop.envs.soft.tasks import MOVE_M, SoftTask
from roboloop.envs.soft.variation import Variation

CARRY_M = 0.05
"""A full action carries the held point so high over the table on its way; all of -1 to 0 is along the table."""
SUCCESS = 0.9
"""Normalised performance from which on the task counts as done."""
RENDER_SIZE = 240


class SoftWorld:
    """One task without a clock."""

    def __init__(self, task: SoftTask, reward: str, sees_pixels: bool, size: int, cfg: SoftConfig) -> None:
        self._task, self._cfg = task, cfg
        self._physics = Physics(task.flex, max(size, RENDER_SIZE))
        self._variation = Variation(self._physics.model, task.flex.view, cfg.randomize)
        self._judge = Judge(task.flex, reward)
        self._picks = Picks(task, sees_pixels, size)
        self._sees_pixels, self._size = sees_pixels, size
        self._is_chosen = cfg.pick == CHOSEN
        self.obs_dtype = self._dtype()
        self._cameras: dict[int, Camera] = {}
        self._seed: int | None = None
        self._rng = stream(0, "soft")
        self._pick = np.zeros(task.pick_dim)
        self._first = self._performance = 0.0
        self._missed = 0

    def _dtype(self) -> np.dtype[Any]:
        """Return a record's fields, or float32 where only one is left."""
        task, size = self._task, self._size
        fields: list[tuple[str, Any, tuple[int, ...]]] = []
        if self._sees_pixels:
            fields.append(("image", np.uint8, (3, size, size)))
        numbers = 0 if self._sees_pixels else 3 * task.flex.num_particles
        if not self._is_chosen:
            numbers += task.pick_dim
        if numbers:
            fields.append(("vector", np.float32, (numbers,)))
        if self._is_chosen:
            fields.append(("picks", np.float16, (self._picks.num_candidates, task.pick_dim)))
        self._vector_size = numbers
        return FLOAT if len(fields) == 1 else np.dtype(fields)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Of a vector; a record has none."""
        return () if self.obs_dtype.names else (self._vector_size,)

    @property
    def action_dim(self) -> int:
        """Columns of an action: the pick if it is chosen, and the move."""
        return self._task.move_dim + (self._task.pick_dim if self._is_chosen else 0)

    def reset(self, seed: int) -> Array:
        """Put the object as the episode of this seed begins."""
        self._seed, self._rng = int(seed), stream(int(seed), "soft")
        self._variation.clear()
        points_m = next(filter(self._judge.begin, self._starts()))
        self._picks.view = self._variation.draw(self._rng)
        self._physics.put_points(points_m)
        self._first = self._judge.score(self._physics.points_m)
        self._performance, self._missed = 0.0, 0
        return self._look(self._physics.points_m)

    def _starts(self) -> Iterator[Array]:
        """Yield places to begin from, until one is taken."""
        is_crumpled = self._task.is_crumpled
        for attempt in itertools.count():
            if self._cfg.start == "fixed":
                yield starts.fixed(self._physics, is_crumpled, attempt)
            else:
                yield starts.draw(self._physics, is_crumpled, self._cfg.pool, attempt, self._rng)

    def _look(self, points_m: Array) -> Array:
        """Return the observation, with the next pick or with picks to choose from."""
        parts: dict[str, Array] = {}
        if not self._is_chosen:
            self._pick = self._picks.draw(points_m, self._rng)
        if self._vector_size:
            seen = [] if self._sees_pixels else [points_m.ravel() / self._task.flex.half_m]
            parts["vector"] = np.concatenate(seen if self._is_chosen else [*seen, self._pick])
        if not self.obs_dtype.names:
            return parts["vector"]
        if self._sees_pixels:
            parts["image"] = self.picture(self._size)
        if self._is_chosen:
            parts["picks"] = self._picks.candidates(points_m, self._rng)
        record: Array = np.zeros((), self.obs_dtype)
        for name, value in parts.items():
            record[name] = value
        return record

    def step(self, action: Array, repeat: int) -> Outcome:
        """Pick and place once; ``repeat`` is always 1."""
        task, before = self._task, self._performance
        pick = action[: task.pick_dim] if self._is_chosen else self._pick
        points_m = self._physics.points_m
        caught = self._picks.caught(points_m, np.asarray(pick, np.float64))
        move = action[-task.move_dim :].astype(np.float64).reshape(task.hands, -1)
        hands = [hand for hand, particle in enumerate(caught) if particle >= 0]
        self._missed += task.hands - len(hands)
        if hands:
            held = [caught[hand] for hand in hands]
            targets_m = np.clip(points_m[held, :2] + MOVE_M * move[hands, :2], -task.flex.half_m, task.flex.half_m)
            heights_m = CARRY_M * np.maximum(move[hands, 2], 0.0) if task.flex.is_sheet else np.zeros(len(hands))
            self._physics.pick_place(held, targets_m, heights_m.tolist())
            points_m = self._physics.points_m
        reward = self._judge.score(points_m)
        self._performance = (reward - self._first) / (self._judge.best - self._first)
        success = float(self._performance >= SUCCESS)
        gain_percent = 100.0 * (self._performance - before)  # they add up to the performance at the end
        return Outcome(self._look(points_m), reward, False, False, success, gain_percent)

    def facts(self) -> Info:
        """Return what is known of the episode beside its rewards."""
        return {"performance": self._performance, "missed_picks": self._missed}

    def picture(self, size: int) -> Array:
        """Return what the camera sees now, ``[3, size, size]``."""
        if size not in self._cameras:
            self._cameras[size] = Camera(self._physics.model, (size, size), 0)
        self._physics.update_places()
        picture: Array = self._cameras[size].look(self._physics.data)
        return picture

    def render(self) -> Array:
        """Return a picture from above, ``[H, W, 3]``."""
        return np.ascontiguousarray(self.picture(RENDER_SIZE).transpose(1, 2, 0))

    def get_state(self) -> State:
        """Return the seed, which says how the episode began, where particles are, and what is drawn next."""
        if self._seed is None:
            return {"seed": None}
        return {
            "seed": self._seed,
            "displacement": self._physics.displacement,
            "rng": get_rng_state(self._rng),
            "pick": np.array(self._pick),
            "performance": self._performance,
            "missed": self._missed,
        }

    def set_state(self, state: State) -> None:
        """Begin the episode again, then put everything where it was."""
        if state["seed"] is None:
            return
        self.reset(int(state["seed"]))
        self._physics.put(np.asarray(state["displacement"], np.float64))
        set_rng_state(self._rng, state["rng"])
        self._pick = np.array(state["pick"], np.float64)
        self._performance, self._missed = float(state["performance"]), int(state["missed"])

    def close(self) -> None:
        """Release the pictures' contexts."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()


class SoftEnv(EpisodeEnv):
    """A soft world with the clock; its info says how far the episode has come and how many picks missed."""

    world: SoftWorld

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Pick and place once."""
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | self.world.facts()
