"""The losses of PPO as pure functions of single rows, each beside its gradient; equations of arXiv:1707.06347.

Rows are weighed by their user: one over the number of rows that count, and zero for those that do not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Keeps the ratio finite where a policy has moved far away: such rows are clipped or of no account anyway."""


class PolicyLoss(NamedTuple):
    """Of each row, ``[N]``."""

    loss: Tensor
    approx_kl: Tensor
    is_clipped: Tensor  # whether the ratio has left the range, on whichever side


def log_ratio_of(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return log of pi / pi_old, bounded."""
    return (log_prob - old_log_prob).clamp_(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> PolicyLoss:
    """Eq. 7: minus the lesser of the plain and the clipped surrogate."""
    ratio = log_ratio.exp()
    near = ratio.clamp(1.0 - clip, 1.0 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    # the estimator of KL(old || new) that is never negative: r - 1 - log r
    return PolicyLoss(loss, ratio - log_ratio - 1.0, (near != ratio).to(loss.dtype))


def policy_loss_gradient(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return the gradient of ``policy_loss`` by the log-probabilities: zero where the clipped surrogate counts."""
    ratio = log_ratio.exp()
    is_idle = torch.where(advantage > 0, ratio > 1.0 + clip, ratio < 1.0 - clip)
    return (ratio * advantage).neg_().masked_fill_(is_idle, 0.0)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error; with ``clip``, the larger one of the value and of the value kept near the old."""
    error = (value - target).square()
    if clip is not None:
        error = torch.maximum(error, (_clipped(value, old_value, clip) - target).square())
    return error * 0.5


def value_loss_gradient(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return the gradient of ``value_loss`` by the values."""
    error = value - target
    if clip is None:
        return error
    # the clipped error is constant outside the range; inside it is the same error, but for rounding
    is_outside = (value - old_value).abs() > clip
    is_larger = (_clipped(value, old_value, clip) - target).square() > error.square()
    return error.masked_fill_(is_outside & is_larger, 0.0)


def _clipped(value: Tensor, old_value: Tensor, clip: float) -> Tensor:
    return old_value + (value - old_value).clamp(-clip, clip)


def advantage_sums(advantage: Tensor, weight: Tensor) -> Tensor:
    """Return what mean and deviation over several shards need: weights, sum and sum of squares."""
    return torch.stack((torch.ones_like(advantage), advantage, advantage.square())) @ weight


def normalised(advantage: Tensor, sums: Tensor) -> Tensor:
    """Return advantages with mean 0 and deviation 1 over all rows that the sums cover."""
    total, first, second = (float(x) for x in sums)
    mean = first / total
    std = math.sqrt(max(second / total - mean * mean, 0.0))
    return (advantage - mean) / (std + 1e-8)
