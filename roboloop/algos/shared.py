"""Anonymous shared memory and the counters through which processes hand work to each other."""

from __future__ import annotations

import mmap
import os

import torch

CONTROL_BYTES = 4096
LINE = 8
"""int64 words per cache line: each counter has its own, so that spinning does not slow the neighbour."""
PHASES_PER_UPDATE = 256


class SharedMemory:
    """A memory file without a name: gone with the last process that maps it, however that process ends."""

    def __init__(self, fd: int, num_floats: int) -> None:
        self.fd, self.num_floats = fd, num_floats
        self._map = mmap.mmap(fd, CONTROL_BYTES + 4 * num_floats)
        self.floats = torch.frombuffer(self._map, dtype=torch.float32, offset=CONTROL_BYTES)
        self.words = memoryview(self._map)[:CONTROL_BYTES].cast("q")

    @classmethod
    def create(cls, num_floats: int) -> SharedMemory:
        """Return new memory, all zero."""
        if not hasattr(os, "memfd_create"):
            return cls._private(num_floats)
        fd = os.memfd_create("roboloop-update", os.MFD_CLOEXEC)
        os.ftruncate(fd, CONTROL_BYTES + 4 * num_floats)
        return cls(fd, num_floats)

    @classmethod
    def _private(cls, num_floats: int) -> SharedMemory:
        return cls(-1, num_floats)

    def __del__(self) -> None:
        """Give the descriptor back; the mapping lives as long as tensors look at it."""
        if self.fd >= 0:
            os.close(self.fd)


class Control:
    """Counters: the word that says what to do, and per helper ready, parked and done."""

    def __init__(self, shared: SharedMemory) -> None:
        self._words = shared.words

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
