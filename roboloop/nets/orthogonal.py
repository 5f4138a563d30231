"""Orthogonal initial weights (arXiv:1312.6120): a layer neither shrinks nor stretches what passes through it."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import Tensor, nn

T = TypeVar("T", Tensor, nn.Linear)

HIDDEN_GAINS = {"relu": math.sqrt(2.0), "tanh": math.sqrt(2.0), "elu": 1.0}
"""By activation. ELU lets most of what is below zero pass too: with ReLU's gain what leaves four layers is so large
that a seventh of a recurrent core is saturated before anything has been learned."""
POLICY_GAIN = 0.01
"""The first policy is almost the same everywhere, so that the first updates are not about undoing an accident."""
VALUE_GAIN = 1.0


def orthogonal(what: T, gain: float) -> T:
    """Fill a weight ``[out, ...]``, or that of a layer whose bias becomes zero, with orthonormal rows or columns."""
    if isinstance(what, nn.Linear):
        nn.init.orthogonal_(what.weight, gain)
        nn.init.zeros_(what.bias)
    else:
        nn.init.orthogonal_(what, gain)
    return what
