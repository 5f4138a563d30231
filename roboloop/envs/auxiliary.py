"""Auxiliary tasks: one environment, K named tasks, and what a transition is worth to each of them.

Nothing but the transition is stored: rewards and successes are pure functions of it that live beside the environment,
so one transition trains all K intentions, and a learner needs no simulator to know them.
"""

from __future__ import annotations

from typing import Protocol

from roboloop.core.types import Array


class AuxiliaryTasks(Protocol):
    """The tasks of one environment; observations are single ones, never stacks, and arrays have N rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """K names, the main task first; the same as ``EnvSpec.tasks``."""
        ...

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``."""
        ...

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        ...
