"""Many named tensors as views of one flat vector, so that optimisers, copies and other processes see one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from roboloop.core.errors import DataError

Views: TypeAlias = dict[str, Tensor]

ALIGN = 16
"""Floats per 64-byte cache line: views start on one, since BLAS results may depend on alignment."""


def aligned(size: int) -> int:
    """Round a number of floats up to whole cache lines."""
    return -(-size // ALIGN) * ALIGN


class Layout:
    """Names and shapes, laid out one after another in one flat float32 vector."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, shape in self.shapes.items():
            self._offsets[name] = offset
            offset += aligned(torch.Size(shape).numel())
        self.size = offset

    def views(self, flat: Tensor) -> Views:
        """Return the named tensors; writing to one writes to ``flat``."""
        return {
            name: flat[self._offsets[name] : self._offsets[name] + torch.Size(shape).numel()].view(shape)
            for name, shape in self.shapes.items()
        }

    def zeros(self, device: str = "cpu") -> Tensor:
        """Return a flat vector of this layout; the gaps between views stay zero."""
        return torch.zeros(self.size, device=device)


def clone(views: Views) -> Views:
    """Return copies that no later update changes."""
    return {name: view.detach().clone() for name, view in views.items()}


def restore(views: Views, saved: Mapping[str, Any], name: str) -> None:
    """Write saved values into views; what does not fit is named."""
    for leaf, view in views.items():
        if leaf not in saved:
            raise DataError(f"saved {name} has no {leaf}: was the network or the environment changed?")
        value = torch.as_tensor(saved[leaf])
        if value.shape != view.shape:
            shapes = f"{tuple(value.shape)}, this network needs {tuple(view.shape)}"
            raise DataError(f"saved {name}/{leaf} has shape {shapes}: was the network or the environment changed?")
        view.copy_(value)
