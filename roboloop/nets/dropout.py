"""Dropout by masks that are given, so that a loss draws nothing: they are functions of a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

LEVELS = 256
"""One byte is drawn per number: rates are multiples of 1/256, and what is kept is scaled by exactly that."""
Keeps: TypeAlias = Mapping[str, Tensor]
"""Masks by place: zero where dropped, and elsewhere what the rest is scaled up by. Empty = nothing is dropped."""


def draw_keeps(rate: float, rng: np.random.Generator, out: Iterable[Tensor]) -> None:
    """Decide anew what is kept."""
    dropped = max(1, round(rate * LEVELS))
    for mask in out:
        count = mask.numel()
        lots = torch.from_numpy(rng.integers(0, 2**64, -(-count // 8), dtype=np.uint64).view(np.uint8)[:count])
        # into floats at once: by way of bools it takes five times as long
        torch.ge(lots.to(mask.device).view(mask.shape), dropped, out=mask).mul_(LEVELS / (LEVELS - dropped))


def kept(keeps: Keeps, place: str, x: Tensor) -> Tensor:
    """Return ``x`` with zeros where dropped and the rest scaled up."""
    return x * keeps[place] if keeps else x


def plus_kept(x: Tensor, keeps: Keeps, place: str, y: Tensor) -> Tensor:
    """Return ``x + kept(y)`` in one pass."""
    return torch.addcmul(x, y, keeps[place]) if keeps else x + y
