"""Where an object can be held: candidates, a place that is given, and the particle that a pick catches."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.soft import geometry
from roboloop.envs.soft.tasks import CORNER, SoftTask
from roboloop.envs.soft.view import centres_of, pixels_of

NUM_DRAWN, NUM_PAIRS = 96, 64
"""Candidates that are drawn, of pixels or of pairs: below 5 % of the picture with which a replay holds them."""
SAME_M = 0.005
"""Of particles about equally near to a pick the topmost is caught."""
CORNERS: Array = 2.0 * np.eye(4) - 1.0


class Picks:
    """Picks of one task: in units of the table from state, of the picture from pixels; corners are one of four."""

    def __init__(self, task: SoftTask, sees_pixels: bool, picture_size: int) -> None:
        self._task, self._flex = task, task.flex
        self._sees_pixels, self._size = sees_pixels, picture_size
        self._triangles = self._flex.triangles if self._flex.is_sheet else None
        drawn = NUM_PAIRS if task.hands > 1 else NUM_DRAWN if sees_pixels else self._flex.num_particles
        self.num_candidates = 4 if task.pick == CORNER else drawn
        self.view = self._flex.view
        """Through which pixels are seen; a camera may be elsewhere in each episode."""

    def candidates(self, points_m: Array, rng: np.random.Generator) -> Array:
        """Return ``[K, P]`` picks that all catch something, if only with one of two hands."""
        if self._task.pick == CORNER:
            return CORNERS
        if self._task.hands == 1 and not self._sees_pixels:
            return self._places(points_m)
        return self._drawn(self._places(points_m), self.num_candidates, rng)

    def draw(self, points_m: Array, rng: np.random.Generator) -> Array:
        """Return one pick ``[P]``, all being equally likely."""
        places = CORNERS if self._task.pick == CORNER else self._places(points_m)
        return self._drawn(places, 1, rng).ravel()

    def _drawn(self, places: Array, count: int, rng: np.random.Generator) -> Array:
        """Return picks ``[count, P]``; two hands are given two places."""
        first = rng.integers(len(places), size=count)
        if self._task.hands == 1:
            return places[first]
        second = (first + rng.integers(1, max(2, len(places)), size=count)) % len(places)
        return np.concatenate([places[first], places[second]], axis=1)

    def _places(self, points_m: Array) -> Array:
        """Return all places ``[M, 2]`` where one hand can hold: particles, or pixels of the object."""
        if not self._sees_pixels:
            return _on_table(points_m[:, :2] / self._flex.half_m)
        units = self.view.units_of(points_m)
        pixels = np.argwhere(self.visible(units))
        if not len(pixels):  # all of it is out of sight: the nearest there is
            return np.clip(units, -1.0, 1.0)
        return centres_of(pixels[:, ::-1], self._size)

    def visible(self, units: Array) -> Array:
        """Return the object's pixels ``[size, size]``."""
        px = pixels_of(units, self._size)
        if self._triangles is not None:
            return geometry.triangles_mask(px, self._triangles, self._size)
        return geometry.line_mask(px, 0.5 * self._size * self._flex.radius_m / self.view.half_m, self._size)

    def caught(self, points_m: Array, pick: Array) -> list[int]:
        """Return the particle that each hand catches at a pick ``[P]``; -1 where it catches nothing."""
        if self._task.pick == CORNER:
            return [geometry.corner_numbers(self._flex.rows)[int(np.argmax(pick))]]
        if self._sees_pixels:
            half_m, seen = self.view.half_m, self.view.units_of(points_m)
        else:
            half_m, seen = self._flex.half_m, points_m[:, :2] / self._flex.half_m
        found: list[int] = []
        for at in pick.reshape(self._task.hands, 2):
            gap_m = half_m * (seen - at)
            distance_m = np.hypot(gap_m[:, 0], gap_m[:, 1])
            distance_m[[particle for particle in found if particle >= 0]] = np.inf  # it is in the other hand
            found.append(self._nearest(points_m, distance_m))
        return found

    def _nearest(self, points_m: Array, distance_m: Array) -> int:
        least_m = float(distance_m.min())
        if least_m > self._flex.snap_m:
            return -1
        height_m = np.where(distance_m <= least_m + SAME_M, points_m[:, 2], -np.inf)
        return int(height_m.argmax())


def _on_table(units: Array) -> Array:
    """Return places ``[N, 2]``, those beyond the table's edge replaced by the nearest that are not."""
    is_on = (np.abs(units) <= 1.0).all(axis=1)
    if is_on.all() or not is_on.any():
        return np.clip(units, -1.0, 1.0)
    gap = np.square(units[~is_on, None] - units[None, is_on]).sum(axis=-1)
    out: Array = units.copy()
    out[~is_on] = units[is_on][gap.argmin(axis=1)]
    return out
