"""Random shifts of sampled pictures (DrQ, arXiv:2004.13649), by whole pixels: slices are copied, nothing is blended."""

from __future__ import annotations

import numpy as np

from roboloop.core.fields import part, parts_of
from roboloop.core.types import Array, EnvSpec


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
    """Shifts each picture of batches of observations, or of stacks of them, on its way out; a stack moves as one."""

    def __init__(self, obs: Array, spec: EnvSpec, reach_px: int) -> None:
        parts = parts_of(spec)
        self._reach_px, self._fields = reach_px, tuple(parts)
        self._pictures = tuple(name for name, about in parts.items() if about.is_picture)
        self._before = np.empty_like(obs) if reach_px and self._pictures else None

    def inlet(self, obs: Array) -> Array:
        """Return where observations on their way to ``obs`` are to be written first."""
        return obs if self._before is None else self._before

    def finish(self, obs: Array, rng: np.random.Generator) -> None:
        """Take them on to ``obs``, each picture shifted by its own draw; where nothing is shifted, nothing is drawn."""
        if self._before is None:
            return
        for name in self._fields:
            source, target = part(self._before, name), part(obs, name)
            if name in self._pictures:
                shift(source, rng.integers(-self._reach_px, self._reach_px + 1, (len(obs), 2)), target)
            else:
                np.copyto(target, source)
