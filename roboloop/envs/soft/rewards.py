"""What the places of particles are worth: one number each, the best known beforehand, from geometry and never colour.

Silhouettes are drawn as if each point were seen from straight above, not through the camera: height changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.soft import geometry
from roboloop.envs.soft.model import Flex
from roboloop.envs.soft.view import pixels_of

MASK_SIZE = 64
FINE_SIZE = 192
FINE_SHARE = 1.5
"""The fine silhouette of ``concave`` goes beyond the workspace by this factor."""
LINE_COLUMNS = 128
LINE_DECAY_M = 0.02
"""So far from its line a rope is worth 1/e of what it is on it."""
ON_FLOOR_M = 0.01
BEND = 0.5
"""Two pieces of a seam are in line if the sine of the angle between them is less."""
BEST = {"distance": 0.0, "fold": 0.0}
"""Of all others it is 1."""
LEAST_ROOM = {"seam": 0.3}
"""An episode begins at least so far below the best, or there would be nothing to do; 0.1 for all others."""


class Judge:
    """Scores of one object."""

    def __init__(self, flex: Flex, reward: str) -> None:
        self._flex, self._flat_m = flex, flex.flat_m
        self._start_m = self._flat_m
        self.best, self._least_room = BEST.get(reward, 1.0), LEAST_ROOM.get(reward, 0.1)
        self._score: Callable[[Array], float] = getattr(self, f"_{reward}")
        if flex.is_sheet:
            self._goal = self.mask(self._flat_m)
        if reward == "concave":
            self._flat_area = float(np.count_nonzero(self._fine_mask(self._flat_m)))
        if reward == "line":
            self._columns_m = np.linspace(-flex.half_m, flex.half_m, LINE_COLUMNS)
            self._straight = self._line_score(self._flat_m)

    def begin(self, start_m: Array) -> bool:
        """Take note of where an episode begins; say whether that leaves enough to do."""
        self._start_m = start_m
        return self.best - self.score(start_m) >= self._least_room

    def score(self, points_m: Array) -> float:
        """Return what places ``[N, 3]`` are worth."""
        return self._score(points_m)

    def mask(self, points_m: Array) -> Array:
        """Return the sheet's silhouette in a picture of the workspace."""
        px = pixels_of(points_m[:, :2] / self._flex.half_m, MASK_SIZE)
        return geometry.triangles_mask(px, self._flex.triangles, MASK_SIZE)

    def _coverage(self, points_m: Array) -> float:
        """Share of the flat sheet's silhouette, in the middle of the table, that is covered."""
        return geometry.coverage(self.mask(points_m), self._goal)

    def _area(self, points_m: Array) -> float:
        """Silhouette inside the workspace, wherever it is, over that of the flat sheet."""
        return float(np.count_nonzero(self.mask(points_m))) / float(np.count_nonzero(self._goal))

    def _convex(self, points_m: Array) -> float:
        """Area of the convex hull over the flat sheet's."""
        return geometry.hull_area(points_m[:, :2]) / self._flex.length_m**2

    def _fine_mask(self, points_m: Array) -> Array:
        px = pixels_of(points_m[:, :2] / (FINE_SHARE * self._flex.half_m), FINE_SIZE)
        return geometry.triangles_mask(px, self._flex.triangles, FINE_SIZE)

    def _concave(self, points_m: Array) -> float:
        """Area of the union of all triangles, finely drawn and beyond the workspace too, over the flat sheet's."""
        return float(np.count_nonzero(self._fine_mask(points_m))) / self._flat_area

    def _diagonal(self, points_m: Array) -> float:
        """Sum of both diagonals over that of the flat sheet."""
        return geometry.diagonals_m(points_m, self._flex.rows) / (2.0 * math.sqrt(2.0) * self._flex.length_m)

    def _distance(self, points_m: Array) -> float:
        """Mean distance of particles to the goal pose in lengths of the object, negative; a rope has no first end."""
        gap_m = geometry.mean_distance_m(points_m, self._flat_m)
        if not self._flex.is_sheet:
            gap_m = min(gap_m, geometry.mean_distance_m(points_m[::-1], self._flat_m))
        return -gap_m / self._flex.length_m

    def _line_score(self, points_m: Array) -> float:
        return geometry.line_score(points_m[:, :2], self._flex.radius_m, self._columns_m, LINE_DECAY_M)

    def _line(self, points_m: Array) -> float:
        """Silhouette of the rope, weighed by how near the horizontal middle it is; 1 when straight on it."""
        return min(1.0, self._line_score(points_m) / self._straight)

    def _fold(self, points_m: Array) -> float:
        """Gap between mirrored halves and drift of the lower one in lengths of the sheet, negative."""
        return -geometry.fold_gap_m(points_m, self._start_m, self._flex.rows) / self._flex.length_m

    def _seam(self, points_m: Array) -> float:
        """Three particles in the middle of a side lie on the table and in line, and nothing else is over them."""
        side = self._flex.rows
        first = side // 2 - 1
        grid = points_m.reshape(side, side, 3)
        seam, inner = grid[0, first : first + 3], grid[1, first : first + 3]
        floor_m = self._flex.rest_height_m + ON_FLOOR_M
        (ax, ay), (bx, by) = np.diff(seam[:, :2], axis=0)
        length = float(np.hypot(ax, ay) * np.hypot(bx, by))
        is_line = ax * bx + ay * by > 0 and abs(ax * by - ay * bx) < BEND * length
        others = np.delete(points_m, np.arange(first, first + 3), axis=0)
        gap_m = np.linalg.norm(others[:, None, :2] - seam[None, :, :2], axis=-1).min(axis=1)
        is_clear = gap_m > 0.5 * self._flex.spacing_m
        return float(
            0.1 * np.count_nonzero(seam[:, 2] <= floor_m)
            + 0.35 * is_line
            + 0.05 * np.count_nonzero(inner[:, 2] <= floor_m)
            + 0.2 * is_clear.mean()
        )
