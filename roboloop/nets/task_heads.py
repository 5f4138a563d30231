"""Layers of K networks of equal shape in one batched product: heads of several tasks, modules that are mixed.

Rows lie group by group, ``[K, n]``, so a row meets the weights of its own group only: no K^2 work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.core.types import Array


class GroupedLinear(nn.Module):
    """K linear layers ``[K, inputs, outputs]``; drawn as ``nn.Linear`` draws its weights."""

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(groups, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[K * n, outputs]`` for rows ``[K * n, inputs]``, which lie group by group."""
        y: Tensor = self.by_group(x.view(len(self.weight), -1, x.shape[1])).flatten(0, 1)
        return y

    def by_group(self, x: Tensor) -> Tensor:
        """Return ``[K, n, outputs]`` for ``[K, n, inputs]``."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)


def with_heads(groups: int, shared: Sequence[int], own: Sequence[int], layer_norm: bool = False) -> nn.Sequential:
    """Return layers of the widths ``shared`` that all groups have in common, then layers of each group's own.

    ``shared`` begins with the inputs, ``own`` ends with the outputs. What normalises hidden layers is common to all.
    """
    layers: list[nn.Module] = []
    widths = [*shared, *own]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        is_shared = i < len(shared) - 1
        layers.append(nn.Linear(inputs, outputs) if is_shared else GroupedLinear(groups, inputs, outputs))
        if i < len(widths) - 2:
            layers += [nn.LayerNorm(outputs)] * layer_norm
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def places_by_group(group: Array, num_groups: int) -> tuple[Array, int]:
    """Return where rows of any order go among ``[K, n]`` rows, and the least n that holds them all."""
    counts = np.bincount(group, minlength=num_groups)
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    n = int(counts.max())
    return group * n + rank, n
