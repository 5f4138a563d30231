"""Many environments in one simulator: what a group of them needs, whoever wrote the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from roboloop.core.types import Array, State


class VectorResult(NamedTuple):
    """What a step did to B environments."""

    obs: Array  # [B, ...] that the actions led to: the true last one where an episode ended
    reward: Array  # [B] float64; zero where ``is_reset``
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    success: Array  # [B] float64, NaN where it is not said
    is_reset: Array  # [B] bool: this was no step; ``obs`` is the first one of an episode


class VectorWorld(Protocol):
    """B environments that one call steps."""

    can_save: bool
    """Whether ``get_state`` holds all that the rest of the run depends on."""

    def reset(self, seeds: Sequence[int]) -> Array:
        """Begin an episode in every environment; return the first observations ``[B, ...]``."""
        ...

    def step(self, action: Array) -> VectorResult:
        """Take float32 actions ``[B, A]`` inside the bounds."""
        ...

    def begin(self, ended: Array, seeds: Callable[[], list[int]]) -> Array | None:
        """Begin the next episode in these environments, whose last one ended with the step before.

        Return observations ``[B, ...]`` that hold the first ones; None where that takes a step of the simulator.
        ``seeds`` are those of the new episodes, in the order of ``ended``, for simulators that take any.
        """
        ...

    def render(self) -> Array:
        """Return a picture of the first environment, ``[H, W, 3]`` uint8."""
        ...

    def get_state(self) -> State:
        """Return all that the rest of the run depends on."""
        ...

    def set_state(self, state: State) -> None:
        """Restore what ``get_state`` returned."""
        ...

    def close(self) -> None:
        """Release the simulator."""
        ...
