"""Observation normalisers: they live inside the policy, so that evaluation and the robot see what training saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from roboloop.core.types import Array, State

CLIP = 10.0
"""Normalised observations are cut here, so that a rare outlier cannot throw a network."""
VARIANCE_FLOOR = 1e-8
"""Keeps observations that never change at zero instead of dividing by nothing."""


class Normalizer(Protocol):
    """Maps flat observations ``[N, D]`` to what the networks see."""

    def update(self, x: Array) -> None:
        """Learn from a batch."""
        ...

    def __call__(self, x: Array) -> Array:
        """Return the normalised observations."""
        ...

    def state(self) -> State:
        """Return what was learned."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what was learned."""
        ...

    @property
    def numbers(self) -> Array:
        """The float32 numbers that the result depends on: what a copy in another process needs."""
        ...


class Identity:
    """Leaves observations as they are."""

    def update(self, x: Array) -> None:
        """Learn nothing."""

    def __call__(self, x: Array) -> Array:
        """Return them unchanged."""
        return x

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    @property
    def numbers(self) -> Array:
        """No numbers."""
        return np.zeros(0, np.float32)


class RunningNorm:
    """Mean and variance of all rows ever seen (Chan's parallel form of Welford's sums)."""

    def __init__(self, dim: int, variance_floor: float = VARIANCE_FLOOR) -> None:
        self._count, self._floor = 0, variance_floor
        self._mean = np.zeros(dim)
        self._squares = np.zeros(dim)  # summed squared distances from the mean
        self._refresh()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been seen yet."""
        return self._count == 0

    def _refresh(self) -> None:
        variance = self._squares / self._count if self._count else np.ones_like(self._squares)
        self._shift = self._mean.astype(np.float32)
        self._scale = (1.0 / np.sqrt(variance + self._floor)).astype(np.float32)

    def update(self, x: Array) -> None:
        """Add the rows of a batch."""
        rows, mean = len(x), x.mean(0, dtype=np.float64)
        total, delta = self._count + rows, mean - self._mean
        distance = x - mean
        self._squares += np.einsum("nd,nd->d", distance, distance) + delta**2 * (self._count * rows / total)
        self._mean += delta * (rows / total)
        self._count = total
        self._refresh()

    def __call__(self, x: Array) -> Array:
        """Return (x - mean) / std, clipped."""
        return scaled(x, self._shift, self._scale)

    @property
    def numbers(self) -> Array:
        """Mean, then one over the deviation."""
        return np.concatenate((self._shift, self._scale))

    def state(self) -> State:
        """Return the sums."""
        return {"count": self._count, "mean": self._mean.copy(), "squares": self._squares.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the sums."""
        self._count = int(state["count"])
        self._mean[:] = state["mean"]
        self._squares[:] = state["squares"]
        self._refresh()


class FollowedNorm:
    """Scales as another normaliser does, by its numbers; it does not learn."""

    def __init__(self, dim: int) -> None:
        self.numbers = np.concatenate((np.zeros(dim, np.float32), np.ones(dim, np.float32)))

    def __call__(self, x: Array) -> Array:
        """Return what the other would."""
        shift, scale = np.split(self.numbers, 2)
        return scaled(x, shift, scale)

    def update(self, x: Array) -> None:
        """Learn nothing: the other one does."""

    def state(self) -> State:
        """Return the numbers."""
        return {"numbers": self.numbers.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the numbers."""
        self.numbers[:] = state["numbers"]


def scaled(x: Array, shift: Array, scale: Array) -> Array:
    """Return (x - shift) * scale, clipped."""
    y: Array = (x - shift) * scale
    np.maximum(y, -CLIP, out=y)
    np.minimum(y, CLIP, out=y)
    return y


def normalizer_of(state: Mapping[str, Any]) -> Normalizer:
    """Build the normaliser that a saved state belongs to."""
    if not state:
        return Identity()
    norm = RunningNorm(len(state["mean"])) if "mean" in state else FollowedNorm(len(state["numbers"]) // 2)
    norm.load(state)
    return norm
