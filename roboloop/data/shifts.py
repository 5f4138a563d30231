"""Random shifts of sampled pictures (DrQ, arXiv:2004.13649), by whole pixels: slices are copied, nothing is blended."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array


def shift(pictures: Array, offsets: Array, out: Array) -> None:
    """Write ``pictures [N, ..., height, width]`` so that pixel (y, x) shows what was at (y + dy, x + dx).

    ``offsets [N, 2]`` are dy and dx of each; what would lie outside is the nearest edge's.
    """
    height, width = pictures.shape[-2:]
    for source, target, (dy, dx) in zip(pictures, out, offsets.tolist(), strict=True):
        top, bottom = max(0, -dy), min(height, height - dy)
        left, right = max(0, -dx), min(width, width - dx)
        inside = target[..., top:bottom, :]
        inside[..., left:right] = source[..., top + dy : bottom + dy, left + dx : right + dx]
        if dx < 0:
            inside[..., :left] = inside[..., left : left + 1]
        if dx > 0:
            inside[..., right:] = inside[..., right - 1 : right]
        if dy < 0:
            target[..., :top, :] = target[..., top : top + 1, :]
        if dy > 0:
            target[..., bottom:, :] = target[..., bottom - 1 : bottom, :]


class Shifts:
    """Shifts the pictures of batches of observations, or of stacks of them, in place; a stack moves as one."""

    def __init__(self, obs: Array, reach_px: int) -> None:
        self._reach_px = reach_px
        self._before = [np.empty_like(picture) for picture in _pictures(obs)] if reach_px else []

    def __call__(self, obs: Array, rng: np.random.Generator) -> None:
        """Shift each observation by its own draw; where there is nothing to shift, nothing is drawn."""
        if not self._before:
            return
        offsets = rng.integers(-self._reach_px, self._reach_px + 1, (len(obs), 2))
        for before, picture in zip(self._before, _pictures(obs), strict=True):
            np.copyto(before, picture)
            shift(before, offsets, picture)


def _pictures(obs: Array) -> list[Array]:
    """Return the fields of pixels, as views ``[N, ..., height, width]``."""
    names = obs.dtype.names
    if names is None:
        return [obs] if obs.dtype == np.uint8 and obs.ndim >= 4 else []
    return [obs[name] for name in names if obs.dtype[name].base == np.uint8 and len(obs.dtype[name].shape) == 3]
