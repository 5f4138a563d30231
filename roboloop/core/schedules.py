"""Schedules are objects asked with the step; they survive steps that jump over multiples, and checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

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

    def __call__(self, step: int, episode_ended: bool) -> range:
        """Return the updates to do now; fractions are carried over, nothing is owed for warm-up steps."""
        due = episode_ended if self.at_episode_end else self._burst(step)
        if not due or step <= self.start:
            return range(0)
        # 1e-9 keeps ratios such as 0.1 from losing an update to rounding at whole numbers
        owed = math.floor((step - self.start) * self.per_step + 1e-9) - self._paid
        self._paid += owed
        return range(owed)

    def state(self) -> State:
        """Return the debt already paid."""
        return {"paid": self._paid, "burst": self._burst.state()}

    def load(self, state: State) -> None:
        """Restore the debt already paid."""
        self._paid = int(state["paid"])
        self._burst.load(state["burst"])


class InSlack:
    """Owes ``per_step`` updates for each step after ``start``, and pays while there is time before the next deadline.

    What an update takes is learned from the updates themselves; the first ones are taken where there is no deadline.
    """

    MARGIN_S = 0.001
    """Never used, so that the deadline finds us waiting."""
    TRIALS = 3
    """Updates before their time is believed; the first ones also warm things up."""
    FORGET = 0.995
    """How fast a slow update is forgotten, per update or refusal."""

    def __init__(self, per_step: float, start: int, time_left_s: Callable[[], float]) -> None:
        self.per_step, self.start = per_step, start
        self._time_left_s = time_left_s
        self._paid = 0
        self._trials = 0
        self._slowest_s = 0.0

    def __call__(self, step: int, episode_ended: bool) -> Iterator[int]:
        """Yield while an update is owed and would end in time; what is left waits for the next call."""
        if step <= self.start:
            return
        owed = (step - self.start) * self.per_step + 1e-9 - self._paid
        while owed >= 1 and self._has_time(owed):
            begin_s = time.perf_counter()
            yield self._paid
            self._learn(time.perf_counter() - begin_s)
            self._paid += 1
            owed -= 1

    def _has_time(self, owed: float) -> bool:
        left_s = self._time_left_s()
        if math.isinf(left_s):  # nobody waits; but an unlimited debt is for the slack alone
            return math.isfinite(owed) or self._trials < self.TRIALS
        has_time = self._trials >= self.TRIALS and left_s > self._slowest_s + self.MARGIN_S
        if not has_time:
            self._slowest_s *= self.FORGET
        return has_time

    def _learn(self, took_s: float) -> None:
        self._trials += 1
        # the trial before the last is the first that is not slowed down by the beginning
        is_known = self._trials >= self.TRIALS
        self._slowest_s = max(took_s, self.FORGET * self._slowest_s) if is_known else 0.0

    def state(self) -> State:
        """Return the debt already paid."""
        return {"paid": self._paid}

    def load(self, state: State) -> None:
        """Restore the debt already paid; how long updates take is learned anew."""
        self._paid = int(state["paid"])


class WhenFull:
    """One update each time an on-policy store has gathered enough."""

    def __init__(self, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full

    def __call__(self, step: int, episode_ended: bool) -> range:
        """Return one update when there is enough to learn from."""
        return range(int(self._is_full()))

    def state(self) -> State:
        """Return nothing: the store knows."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""
