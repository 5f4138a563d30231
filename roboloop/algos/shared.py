"""The counters through which processes hand work to each other, and the floats they share."""

from __future__ import annotations

import torch
from torch import Tensor

from roboloop.core.memory import SharedMemory

CONTROL_BYTES = 4096
LINE = 8
"""int64 words per cache line: each counter has its own, so that spinning does not slow the neighbour."""
PHASES_PER_UPDATE = 256


def num_bytes(num_floats: int) -> int:
    """Return the size of a shared memory with counters and so many floats."""
    return CONTROL_BYTES + 4 * num_floats


def floats_of(shared: SharedMemory) -> Tensor:
    """Return the floats behind the counters."""
    return torch.frombuffer(shared.map, dtype=torch.float32, offset=CONTROL_BYTES)


class Control:
    """Counters: the word that says what to do, and per helper ready, parked and done."""

    def __init__(self, shared: SharedMemory) -> None:
        self._words = memoryview(shared.map)[:CONTROL_BYTES].cast("q")

    @staticmethod
    def next_word(word: int, phase_index: int) -> int:
        """Return a word never used before that carries the phase: one store hands over both."""
        return (word // PHASES_PER_UPDATE + 1) * PHASES_PER_UPDATE + phase_index

    @staticmethod
    def phase_index(word: int) -> int:
        """Return the phase that a word carries."""
        return word % PHASES_PER_UPDATE

    @property
    def word(self) -> int:
        """The last posted word."""
        return self._words[0]

    def post(self, word: int) -> None:
        """Hand a phase to all helpers."""
        self._words[0] = word

    def is_ready(self, number: int) -> bool:
        """Say whether a helper can take work."""
        return self._words[LINE * (3 * number + 1)] != 0

    def set_ready(self, number: int) -> None:
        """Say that this helper can take work."""
        self._words[LINE * (3 * number + 1)] = 1

    def is_parked(self, number: int) -> bool:
        """Say whether a helper sleeps and must be woken through its pipe."""
        return self._words[LINE * (3 * number + 2)] != 0

    def set_parked(self, number: int, parked: bool) -> None:
        """Say that this helper goes to sleep or has woken."""
        self._words[LINE * (3 * number + 2)] = int(parked)

    def is_done(self, number: int, word: int) -> bool:
        """Say whether a helper has finished the phase of this word."""
        return self._words[LINE * (3 * number + 3)] == word

    def set_done(self, number: int, word: int) -> None:
        """Say that this helper has finished the phase of this word."""
        self._words[LINE * (3 * number + 3)] = word
