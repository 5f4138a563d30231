"""Episodes in the order in which they were begun: the first N to end would be the short ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from roboloop.core.types import Rollout
from roboloop.data.assembly import Assembler, packet_of
from roboloop.data.episodes import Episode


class Attempt(NamedTuple):
    """One whole episode."""

    number: int
    """Episode k of environment e of E is attempt k E + e, whoever was faster."""
    episode: Episode
    end: Any
    """Its row of ``ring.END``."""


class Attempts:
    """Joins the rollouts of E environments into episodes, and holds one back until all before it are over."""

    def __init__(self, num_envs: int) -> None:
        self._assembler = Assembler()
        self._held: dict[int, Attempt] = {}
        self._next = np.zeros(num_envs, np.int64)  # episode of each environment that is not known to be over

    @property
    def settled(self) -> int:
        """Attempts that are over, with all before them; some may have been lost with their simulator."""
        count = len(self._next)
        return int((self._next * count + np.arange(count)).min())

    def add(self, rollout: Rollout, step: int) -> list[Attempt]:
        """Take a rollout of all environments that ended at a step; return the episodes that are settled by it."""
        for episode, end in self._assembler.add(packet_of(rollout, step)):
            number = int(end["episode"]) * len(self._next) + int(end["env"])
            self._held[number] = Attempt(number, episode, end)
        for over in rollout.episodes:
            self._next[over.env] = over.episode + 1
        return [self._held.pop(number) for number in sorted(n for n in self._held if n < self.settled)]
