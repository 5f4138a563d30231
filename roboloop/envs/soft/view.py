"""A camera that looks straight down on the table: from points to pixels and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roboloop.core.types import Array


@dataclass(frozen=True)
class View:
    """A square picture of the table (z = 0) in true perspective; its units are [-1, 1], x to the right and y up."""

    half_m: float
    """Half of the width of table that is seen."""
    height_m: float
    """Of the camera over the table."""
    x_m: float = 0.0
    y_m: float = 0.0

    @property
    def fovy_deg(self) -> float:
        """MuJoCo's field of view."""
        return math.degrees(2.0 * math.atan(self.half_m / self.height_m))

    def units_of(self, points_m: Array) -> Array:
        """Return where points ``[..., 3]`` are seen, ``[..., 2]``: the higher one is, the farther from the middle."""
        depth = self.height_m - points_m[..., 2:]
        aside: Array = points_m[..., :2] - np.array([self.x_m, self.y_m])
        return aside * (self.height_m / self.half_m) / depth

    def points_of(self, units: Array, z_m: float | Array = 0.0) -> Array:
        """Return the points ``[..., 3]`` at a height that are seen at ``[..., 2]``."""
        height = np.broadcast_to(np.asarray(z_m, float), units.shape[:-1])[..., None]
        aside = units * (self.half_m / self.height_m) * (self.height_m - height)
        return np.concatenate([aside + np.array([self.x_m, self.y_m]), height], axis=-1)


def pixels_of(units: Array, size: int) -> Array:
    """Return columns and rows, as points of the plane in which pixel (0, 0) is centred at (0.5, 0.5)."""
    return np.stack([units[..., 0] + 1.0, 1.0 - units[..., 1]], axis=-1) * (0.5 * size)


def centres_of(columns_rows: Array, size: int) -> Array:
    """Return the units of the centres of pixels, given as columns and rows."""
    at = (columns_rows + 0.5) * (2.0 / size)
    return np.stack([at[..., 0] - 1.0, 1.0 - at[..., 1]], axis=-1)
