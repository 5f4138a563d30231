"""Orthogonal initial weights (arXiv:1312.6120): a layer neither shrinks nor stretches what passes through it."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.nets.flat import Views
from roboloop.nets.layers import as_in_out

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


def fill_orthogonal(in_out: Tensor, gain: float, rng: np.random.Generator) -> None:
    """Fill a matrix ``[in, out]`` with ``gain`` times orthonormal rows or columns, whichever are fewer."""
    rows, columns = in_out.shape
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))  # makes the factorisation unique, and the draw uniform
    in_out.copy_(torch.from_numpy((gain * (q if rows >= columns else q.T)).astype(np.float32)))


def fill_layers(weights: Views, gains: list[float], rng: np.random.Generator) -> None:
    """Fill the layers of an MLP, one gain each, with zero biases and identity norms."""
    for i, gain in enumerate(gains):
        bias = weights[f"linear{i}.bias"].zero_()
        fill_orthogonal(as_in_out(weights[f"linear{i}.weight"], bias), gain, rng)
        if f"norm{i}.gain" in weights:
            weights[f"norm{i}.gain"].fill_(1.0)
            weights[f"norm{i}.bias"].zero_()
