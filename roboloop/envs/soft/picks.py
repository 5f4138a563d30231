"""Where an object can be held: candidates, a place that is given, and the particle that a pick catches."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.soft import geometry
from roboloop.envs.soft.tasks import CORNER, SoftTask
from roboloop.envs.soft.view import centres_of, pixels_of

NUM_DRAWN = 96
"""Candidates that are drawn, of pixels or of pairs."""
SAME_M = 0.005
"""Of particles about equally near to a pick the topmost is caught."""
CORNERS = 2.0 * np.eye(4) - 1.0


class Picks:
    """Picks of one task: in units of the table from state, of the picture from pixels; corners are one of four."""

    def __init__(self, task: SoftTask, sees_pixels: bool, picture_size: int) -> None:
        self._task, self._flex = task, task.flex
        self._sees_pixels, self._size = sees_pixels, picture_size
        self._triangles = self._flex.triangles if self._flex.is_sheet else None
        is_drawn = task.hands > 1 or sees_pixels
        self.num_candidates = 4 if task.pick == CORNER else NUM_DRAWN if is_drawn else self._flex.num_particles
        self.view = self._flex.view
        """Through which pixels are seen; a camera may be elsewhere in each episode."""

    def candidates(self, points_m: Array, rng: np.random.Generator) -> Array:
        """Return ``[K, P]`` picks that all catch something."""
        if self._task.pick == CORNER:
            return CORNERS
        if self._task.hands == 1 and not self._sees_pixels:
            return self._places(points_m)
        places = self._places(points_m)
        shape = (NUM_DRAWN, self._task.hands)
        return places[rng.integers(len(places), size=shape)].reshape(NUM_DRAWN, -1)

    def draw(self, points_m: Array, rng: np.random.Generator) -> Array:
        """Return one pick ``[P]``, all being equally likely."""
        places = CORNERS if self._task.pick == CORNER else self._places(points_m)
        return places[rng.integers(len(places), size=self._task.hands)].ravel()

    def _places(self, points_m: Array) -> Array:
        """Return all places ``[M, 2]`` where one hand can hold: particles, or pixels of the object."""
        if not self._sees_pixels:
            return np.clip(points_m[:, :2] / self._flex.half_m, -1.0, 1.0)
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
        found = [self._nearest(points_m, half_m * (seen - at)) for at in pick.reshape(self._task.hands, 2)]
        if len(found) == 2 and found[0] == found[1]:
            found[1] = -1  # it is in the other hand
        return found

    def _nearest(self, points_m: Array, gap_m: Array) -> int:
        distance_m = np.hypot(gap_m[:, 0], gap_m[:, 1])
        least_m = float(distance_m.min())
        if least_m > self._flex.snap_m:
            return -1
        height_m = np.where(distance_m <= least_m + SAME_M, points_m[:, 2], -np.inf)
        return int(height_m.argmax())
