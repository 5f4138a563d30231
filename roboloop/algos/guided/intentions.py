"""Which task each environment follows now: a scheduler's choices, kept in the memory of the policy that acts.

Memory travels with the running episodes through samplers, workers and checkpoints, so the choices do too. A row is
``[steps so far, key of the episode, choices...]``; zeros, as every episode begins, are an episode without a key.
"""

from __future__ import annotations

import numpy as np

from roboloop.algos.guided.schedulers import Scheduler
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array

KEYS = 1 << 24
"""Keys are whole numbers that float32 holds."""
_STEP, _KEY, _FIRST = 0, 1, 2


class Intentions:
    """Asks a scheduler once per period of each episode."""

    def __init__(self, scheduler: Scheduler, period: int, max_episode_steps: int) -> None:
        if max_episode_steps >= KEYS:
            raise ConfigError(f"an episode of {max_episode_steps} steps is too long to be scheduled")
        self._scheduler, self._period = scheduler, period
        self.memory_size = _FIRST + -(-max_episode_steps // period)

    def advance(self, memory: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the tasks ``[B]`` of the present step, and the memory after it."""
        memory = memory.copy()
        tasks = np.zeros(len(memory), np.int64)
        for i, row in enumerate(memory):
            count, since = divmod(int(row[_STEP]), self._period)
            if row[_STEP] == 0:
                row[_KEY] = rng.integers(KEYS)
            last = self.memory_size - _FIRST - 1
            if since == 0 and count <= last:
                row[_FIRST + count] = self._scheduler.choose(int(row[_KEY]), self._history(row, count))
            # an evaluation goes on asking for an environment whose episode is over
            tasks[i] = int(row[_FIRST + min(count, last)])
            row[_STEP] += 1
        return tasks, memory

    def choices(self, row: Array) -> list[int]:
        """Return the choices of an episode so far, from its row of the memory."""
        return self._history(row, -(-self.steps(row) // self._period))

    def steps_by_choice(self, row: Array) -> list[int]:
        """Return how long each choice of an episode has lasted, from its row of the memory."""
        steps = self.steps(row)
        return [min(self._period, steps - begin) for begin in range(0, steps, self._period)]

    @staticmethod
    def steps(row: Array) -> int:
        """Return how many steps of an episode have been scheduled, from its row of the memory."""
        return int(row[_STEP])

    @staticmethod
    def _history(row: Array, count: int) -> list[int]:
        return [int(choice) for choice in row[_FIRST : _FIRST + count]]
