"""Dropout whose draws come from the caller's generator, all places of a layer in one draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.mlp import Shapes

LEVELS = 256
"""One byte is drawn per number: rates are multiples of 1/256, and what is kept is scaled by exactly that."""


class Keeps(Protocol):
    """One place where numbers may be dropped."""

    def times(self, x: Tensor) -> Tensor:
        """Return ``x`` with zeros where dropped and the rest scaled up; also the gradient's way back."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``x + times(y)``."""
        ...


class Some:
    """Keeps what the last draw kept."""

    def __init__(self, scaled_mask: Tensor) -> None:
        self._scaled_mask = scaled_mask

    def times(self, x: Tensor) -> Tensor:
        """Multiply by the mask."""
        return x * self._scaled_mask

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply and add in one pass."""
        return torch.addcmul(x, y, self._scaled_mask)


class All:
    """Keeps everything."""

    def times(self, x: Tensor) -> Tensor:
        """Return it as it is."""
        return x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add."""
        return x + y


class Dropout:
    """Draws the masks of all ``places`` (name to shape) of a layer."""

    places: Mapping[str, Keeps]

    def __init__(self, rate: float, shapes: Shapes, device: torch.device | str = "cpu") -> None:
        self._dropped = max(1, round(rate * LEVELS))
        self._gain = LEVELS / (LEVELS - self._dropped)
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._masks = torch.empty(sum(sizes), device=device)
        parts = zip(shapes.items(), torch.split(self._masks, sizes), strict=True)
        self.places = {name: Some(mask.view(shape)) for (name, shape), mask in parts}

    def draw(self, rng: np.random.Generator) -> None:
        """Decide anew what is kept."""
        count = self._masks.numel()
        lots = rng.integers(0, 2**64, -(-count // 8), dtype=np.uint64).view(np.uint8)[:count]
        # into floats at once: by way of bools it takes five times as long
        torch.ge(torch.from_numpy(lots).to(self._masks.device), self._dropped, out=self._masks).mul_(self._gain)


class Everything:
    """No dropout: draws nothing."""

    places: Mapping[str, Keeps]

    def __init__(self, shapes: Shapes) -> None:
        self.places = {name: All() for name in shapes}

    def draw(self, rng: np.random.Generator) -> None:
        """Do nothing."""


def make_dropout(rate: float, shapes: Shapes, device: torch.device) -> Dropout | Everything:
    """Return what drops at this rate."""
    return Dropout(rate, shapes, device) if rate else Everything(shapes)
