"""Every random draw comes from a stream named by (run seed, purpose, indices)."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from roboloop.core.types import State


def _sequence(seed: int, purpose: str, indices: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence((seed, zlib.crc32(purpose.encode()), *indices))


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose: equal names give equal draws, others are independent."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, indices)))


def derive(seed: int, purpose: str, *indices: int) -> int:
    """Return a 31-bit seed of one purpose, for libraries that take integers."""
    return int(_sequence(seed, purpose, indices).generate_state(1)[0] >> 1)


def get_rng_state(rng: np.random.Generator) -> State:
    """Return a generator's state as JSON values (PCG64 state words exceed 64 bits: kept as text)."""
    state: dict[str, Any] = dict(rng.bit_generator.state)
    return {**state, "state": {k: str(v) for k, v in state["state"].items()}}


def set_rng_state(rng: np.random.Generator, state: State) -> None:
    """Restore what ``get_rng_state`` returned."""
    rng.bit_generator.state = {**state, "state": {k: int(v) for k, v in state["state"].items()}}
