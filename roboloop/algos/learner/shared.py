"""The counters through which processes hand work to each other, and the floats they share."""

from __future__ import annotations

import torch
from torch import Tensor

from roboloop.core.memory import SharedMemory

CONTROL_BYTES = 32768
LINE = 8
"""int64 words per cache line: each counter has its own, so that spinning does not slow the neighbour."""
READY, PARKED, DONE, PROGRESS = range(1, 5)
"""Lines of a helper, behind the one of the posted word."""
MOST_MARKS = 1024
PHASES_PER_UPDATE = 256


def num_bytes(num_floats: int) -> int:
    """Return the size of a shared memory with counters and so many floats."""
    return CONTROL_BYTES + 4 * num_floats


def floats_of(shared: SharedMemory) -> Tensor:
    """Return the floats behind the counters."""
    return torch.frombuffer(shared.map, dtype=torch.float32, offset=CONTROL_BYTES)


def undo_area(shared: SharedMemory, helpers: int) -> Tensor:
    """Return the floats in which helpers keep what they are about to change, ``[helper, float]``."""
    return torch.frombuffer(shared.map, dtype=torch.float32).view(helpers, -1)


class Control:
    """Counters: the word that says what to do, and per helper ready, parked, done and progress."""

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

    @staticmethod
    def _at(number: int, line: int) -> int:
        return LINE * (4 * number + line)

    @property
    def word(self) -> int:
        """The last posted word."""
        return self._words[0]

    def post(self, word: int) -> None:
        """Hand a phase to all helpers."""
        self._words[0] = word

    def is_ready(self, number: int) -> bool:
        """Say whether a helper can take work."""
        return self._words[self._at(number, READY)] != 0

    def set_ready(self, number: int) -> None:
        """Say that this helper can take work."""
        self._words[self._at(number, READY)] = 1

    def is_parked(self, number: int) -> bool:
        """Say whether a helper sleeps and must be woken through its pipe."""
        return self._words[self._at(number, PARKED)] != 0

    def set_parked(self, number: int, parked: bool) -> None:
        """Say that this helper goes to sleep or has woken."""
        self._words[self._at(number, PARKED)] = int(parked)

    def is_done(self, number: int, word: int) -> bool:
        """Say whether a helper has finished the phase of this word."""
        return self._words[self._at(number, DONE)] == word

    def set_done(self, number: int, word: int) -> None:
        """Say that this helper has finished the phase of this word."""
        self._words[self._at(number, DONE)] = word

    def marks(self, number: int, word: int) -> int:
        """Return how many marks a helper has made in the phase of this word."""
        of_word, marks = divmod(self._words[self._at(number, PROGRESS)], MOST_MARKS)
        return marks if of_word == word else 0

    def set_marks(self, number: int, word: int, marks: int) -> None:
        """Say how far this helper is in a phase that changes memory in place: before and after each shard one mark."""
        self._words[self._at(number, PROGRESS)] = word * MOST_MARKS + marks

    def forget(self, number: int) -> None:
        """Make a lost helper's counters ready for the next one."""
        for line in (READY, PARKED, DONE, PROGRESS):
            self._words[self._at(number, line)] = 0
