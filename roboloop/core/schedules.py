"""Schedules are objects asked with the step; they survive steps that jump over multiples, and checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable

from roboloop.core.types import State


class Every:
    """Due once per period of steps, however large the jumps between questions."""

    def __init__(self, period: int, first: int = 0) -> None:
        self.period = period
        self._next = first

    def __call__(self, step: int) -> bool:
        """Say whether this step is due, and move on."""
        if self.period <= 0 or step < self._next:
            return False
        self._next = step - step % self.period + self.period
        return True

    def state(self) -> State:
        """Return the step of the next firing."""
        return {"next": self._next}

    def load(self, state: State) -> None:
        """Restore the step of the next firing."""
        self._next = int(state["next"])


class UpdateRatio:
    """Owes ``per_step`` updates for each step after ``start``, paid in bursts of ``every`` steps or at episode ends."""

    def __init__(self, per_step: float, start: int, every: int, at_episode_end: bool) -> None:
        self.per_step = per_step
        self.start = start
        self.at_episode_end = at_episode_end
        self._burst = Every(every, first=start + every)
        self._paid = 0

    def __call__(self, step: int, episode_ended: bool) -> int:
        """Return how many updates to do now; fractions are carried over, nothing is owed for warm-up steps."""
        due = episode_ended if self.at_episode_end else self._burst(step)
        if not due or step <= self.start:
            return 0
        # 1e-9 keeps ratios such as 0.1 from losing an update to rounding at whole numbers
        owed = math.floor((step - self.start) * self.per_step + 1e-9) - self._paid
        self._paid += owed
        return owed

    def state(self) -> State:
        """Return the debt already paid."""
        return {"paid": self._paid, "burst": self._burst.state()}

    def load(self, state: State) -> None:
        """Restore the debt already paid."""
        self._paid = int(state["paid"])
        self._burst.load(state["burst"])


class WhenFull:
    """One update each time an on-policy store has gathered enough."""

    def __init__(self, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full

    def __call__(self, step: int, episode_ended: bool) -> int:
        """Return 1 when there is enough to learn from."""
        return int(self._is_full())

    def state(self) -> State:
        """Return nothing: the store knows."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""
