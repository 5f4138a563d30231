"""What a whole process shares, and a run only borrows: random streams, and how many threads torch computes on."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

STREAM = threading.RLock()
"""Held by who draws from torch's own random stream: runs in other threads draw from it too."""


def _random_state() -> Callable[[], None]:
    """Return a function that gives the process's random streams back as they are now."""
    torch: Any = sys.modules.get("torch")
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(torchs)

    return restore


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the random streams that everybody shares back as they were: some environments draw from them."""
    restore = _random_state()
    try:
        yield
    finally:
        restore()


class _Borrowers:
    """The first to borrow remembers how everything was, the last one to leave restores it."""

    def __init__(self) -> None:
        self._count = 0
        self._restore: Callable[[], None] = lambda: None

    def enter(self, seed: int) -> None:
        import torch

        with STREAM:
            if not self._count:
                restore_random, threads = _random_state(), torch.get_num_threads()

                def restore() -> None:
                    restore_random()
                    torch.set_num_threads(threads)

                self._restore = restore
            self._count += 1
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)

    def leave(self) -> None:
        with STREAM:
            self._count -= 1
            if not self._count:
                self._restore()


_borrowers = _Borrowers()


@contextmanager
def borrowed(seed: int) -> Iterator[None]:
    """Seed the shared random streams for a run, and give streams and torch's threads back at its end.

    So a second run in the same process begins as the first one did, and the program around it sees no change.
    """
    _borrowers.enter(seed)
    try:
        yield
    finally:
        _borrowers.leave()


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Let torch's own random stream begin at a seed, whatever other threads draw, and give it back."""
    import torch

    with STREAM, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
