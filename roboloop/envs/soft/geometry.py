"""How a sheet or a rope lies, from the places of its particles alone: silhouettes, areas, distances.

Pixels are told by their centres: row r and column c of a picture is the point (c + 0.5, r + 0.5) of the plane in which
triangles and lines are drawn.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array

ON_EDGE = 1e-9
"""So far outside a triangle, in square pixels, a pixel on its edge may seem: neighbours leave no gap between them."""


def grid_triangles(side: int) -> Array:
    """Return the triangles ``[T, 3]`` of a square grid whose vertex (i, j) is number ``side * i + j``."""
    i, j = (index.ravel() for index in np.meshgrid(np.arange(side - 1), np.arange(side - 1), indexing="ij"))
    at = side * i + j
    lower, upper = (at, at + side, at + side + 1), (at, at + side + 1, at + 1)
    return np.concatenate([np.stack(lower, axis=1), np.stack(upper, axis=1)])


def corner_numbers(side: int) -> tuple[int, int, int, int]:
    """Return the grid's corners, around it."""
    return 0, side * (side - 1), side * side - 1, side - 1


def _windows(low: Array, high: Array, size: int) -> Array:
    """Return for each box ``[N, 2]`` the pixels whose centres may be in it, ``[N, W, 2]`` as column and row.

    All boxes get windows of one shape, that of the largest, so that everything after is one array.
    """
    first = np.clip(np.ceil(low - 0.5), 0, size).astype(np.int64)
    last = np.clip(np.floor(high - 0.5), -1, size - 1).astype(np.int64)
    columns, rows = np.maximum((last - first).max(axis=0) + 1, 1)
    offset = np.stack(np.divmod(np.arange(columns * rows), rows), axis=-1)
    cells: Array = first[:, None] + offset
    return cells


def _painted(cells: Array, is_in: Array, size: int) -> Array:
    """Return the mask ``[size, size]`` of the chosen cells."""
    mask = np.zeros((size, size), bool)
    chosen = cells[is_in]
    chosen = chosen[(chosen < size).all(axis=1)]
    mask[chosen[:, 1], chosen[:, 0]] = True
    return mask


def triangles_mask(points_px: Array, triangles: Array, size: int) -> Array:
    """Return which pixels of a square picture have their centre in one of the triangles."""
    corners = points_px[triangles]
    cells = _windows(corners.min(axis=1), corners.max(axis=1), size)
    x, y = cells[..., 0] + 0.5, cells[..., 1] + 0.5
    sides = []
    for k in range(3):
        (ax, ay), (bx, by) = corners[:, k].T[..., None], corners[:, (k + 1) % 3].T[..., None]
        sides.append((bx - ax) * (y - ay) - (by - ay) * (x - ax))
    least, most = np.minimum(np.minimum(*sides[:2]), sides[2]), np.maximum(np.maximum(*sides[:2]), sides[2])
    return _painted(cells, (least >= -ON_EDGE) | (most <= ON_EDGE), size)


def line_mask(points_px: Array, radius_px: float, size: int) -> Array:
    """Return which pixels have their centre within a radius of the line through the points."""
    start, end = points_px[:-1], points_px[1:]
    cells = _windows(np.minimum(start, end) - radius_px, np.maximum(start, end) + radius_px, size)
    way = (end - start)[:, None]
    off = cells + 0.5 - start[:, None]
    share = np.clip((off * way).sum(axis=-1) / np.maximum((way * way).sum(axis=-1), 1e-12), 0.0, 1.0)
    gap = off - share[..., None] * way
    return _painted(cells, (gap * gap).sum(axis=-1) <= radius_px**2, size)


def coverage(mask: Array, goal: Array) -> float:
    """Return how much of the goal is covered."""
    return float(np.count_nonzero(mask & goal)) / float(np.count_nonzero(goal))


def hull_area(points: Array) -> float:
    """Return the area of the convex hull of points ``[N, 2]`` (Andrew's monotone chain)."""
    ordered = sorted(map(tuple, points.tolist()))
    return _shoelace([*_half_hull(ordered), *_half_hull(ordered[::-1])])


def _half_hull(ordered: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return one side of the hull, without its last point."""
    hull: list[tuple[float, ...]] = []
    for x, y in ordered:
        while len(hull) > 1:
            (ax, ay), (bx, by) = hull[-2], hull[-1]
            if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                break
            hull.pop()
        hull.append((x, y))
    return hull[:-1]


def _shoelace(ring: list[tuple[float, ...]]) -> float:
    following = [*ring[1:], *ring[:1]]
    return 0.5 * abs(sum(ax * by - bx * ay for (ax, ay), (bx, by) in zip(ring, following, strict=True)))


def diagonals_m(points_m: Array, side: int) -> float:
    """Return the sum of a sheet's two diagonals, from corner to corner through the air."""
    a, b, c, d = (points_m[k] for k in corner_numbers(side))
    return float(np.linalg.norm(a - c) + np.linalg.norm(b - d))


def mean_distance_m(points_m: Array, goal_m: Array) -> float:
    """Return how far particles are from their places, on average."""
    return float(np.linalg.norm(points_m - goal_m, axis=1).mean())


def fold_gap_m(points_m: Array, start_m: Array, side: int, drift_weight: float = 1.2) -> float:
    """Return how far a sheet is from folded: the gap between mirrored halves, and how far the lower one drifted.

    The half with small i goes onto the other, particle (i, j) onto (side - 1 - i, j).
    """
    grid, begun = points_m.reshape(side, side, 3), start_m.reshape(side, side, 3)
    half = side // 2
    gap = np.linalg.norm(grid[:half] - grid[::-1][:half], axis=-1).mean()
    drift = np.linalg.norm(grid[-half:] - begun[-half:], axis=-1).mean()
    return float(gap + drift_weight * drift)


def line_score(points: Array, radius: float, columns: Array, decay: float) -> float:
    """Return how much of a thick line's silhouette there is near y = 0: exp(-abs(y) / decay), summed over columns.

    Exact along y, since rows of pixels would pay for the luck of lying well among them; what lies twice counts once.
    """
    low, top = _crossings(points[:-1], points[1:], radius, columns)
    order = np.argsort(low, axis=0)
    low, top = (np.take_along_axis(ends, order, axis=0) for ends in (low, top))
    covered = np.vstack([np.full((1, len(columns)), -np.inf), np.maximum.accumulate(top, axis=0)[:-1]])
    begin = np.maximum(low, covered)
    end = np.maximum(top, begin)
    within_begin, within_end = (np.sign(y) * -np.expm1(-np.abs(y) / decay) for y in (begin, end))
    return float(decay * (within_end - within_begin).sum())


def _crossings(start: Array, end: Array, radius: float, columns: Array) -> tuple[Array, Array]:
    """Return from where to where ``[pieces, columns]`` vertical lines cross each thick piece; inf to -inf if not."""
    is_backwards = end[:, :1] < start[:, :1]
    left, right = np.where(is_backwards, end, start), np.where(is_backwards, start, end)
    (left_x, left_y), (way_x, way_y) = left.T[..., None], (right - left).T[..., None]
    length = np.maximum(np.hypot(way_x, way_y), 1e-12)
    found = []
    for x, y in ((left_x, left_y), (left_x + way_x, left_y + way_y)):  # round ends
        square = radius**2 - (columns - x) ** 2
        found += [(square >= 0.0, y + side * np.sqrt(np.maximum(square, 0.0))) for side in (-1.0, 1.0)]
    for side in (-1.0, 1.0):  # straight sides, below and above
        share = (columns - left_x + side * radius * way_y / length) / np.maximum(way_x, 1e-12)
        is_on = (share >= 0.0) & (share <= 1.0)
        found.append((is_on, left_y + side * radius * way_x / length + share * way_y))
    low = np.minimum.reduce([np.where(is_on, y, np.inf) for is_on, y in found])
    top = np.maximum.reduce([np.where(is_on, y, -np.inf) for is_on, y in found])
    return low, top


def max_strain(points_m: Array, edges: Array, lengths_m: Array) -> float:
    """Return by which share the worst edge is too long or too short."""
    lengths = np.linalg.norm(points_m[edges[:, 0]] - points_m[edges[:, 1]], axis=1)
    return float(np.abs(lengths / lengths_m - 1.0).max())
