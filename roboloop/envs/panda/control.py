"""The rig's conventions as arithmetic: from an action to a target that may be sent, and how long a thing has held."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.panda.tasks import AXES, JUMP_M, Box

ROOT_3 = math.sqrt(3.0)


@dataclass
class LeadTarget:
    """The target that the arm is led by: actions shift the last target, and never further than is safe."""

    axes: tuple[str, ...]
    """What actions move."""
    limits: Box
    step_m: float
    """How far a target moves when all three axes ask for all."""
    lead_m: float
    """How far a target may run ahead of the arm: the force cap over the stiffness."""

    def __post_init__(self) -> None:
        self._moved = [AXES.index(axis) for axis in self.axes]
        self._low, self._high = np.array(self.limits.low()), np.array(self.limits.high())
        self._per_action_m = self.step_m / ROOT_3
        self.target_m = self.clip(np.zeros(3))
        self.refused = 0
        """Targets that were refused as jumps."""

    def clip(self, pos_m: Array) -> Array:
        """Return the nearest place inside the limits."""
        inside: Array = np.minimum(np.maximum(pos_m, self._low), self._high)
        return inside

    def begin(self, actual_m: Array) -> Array:
        """Start from where the arm is, inside the limits."""
        self.target_m = self.clip(actual_m)
        return self.target_m.copy()

    def shift(self, action: Array, actual_m: Array) -> Array:
        """Move the target by an action, and return the action that was really taken.

        All caps are applied here, before anything is sent: on the rig they once came after, and the arm hit a door.
        """
        before = self.target_m
        wanted = before.copy()
        wanted[self._moved] += action * self._per_action_m
        wanted = self.clip(wanted)
        if math.hypot(*(wanted - before)) > self.step_m + JUMP_M:
            wanted = before.copy()
            self.refused += 1
        ahead = wanted - actual_m
        distance_m = math.hypot(*ahead)
        if distance_m > self.lead_m:
            wanted = actual_m + ahead * (self.lead_m / distance_m)
        self.target_m = wanted
        taken: Array = np.minimum(np.maximum((wanted - before)[self._moved] / self._per_action_m, -1.0), 1.0)
        return taken


@dataclass
class HoldTimer:
    """Says when something has held for a while, and then stays with it."""

    hold_s: float
    since_s: float | None = None
    latched: bool = False

    def update(self, holds: bool, now_s: float) -> bool:
        """Take one look, and say whether it is latched."""
        if not holds:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s
        # times are sums of periods: half a tick is no difference
        if self.since_s is not None and now_s - self.since_s >= self.hold_s - 5e-4:
            self.latched = True
        return self.latched
