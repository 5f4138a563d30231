"""The losses of PPO as pure functions of single rows; equations of arXiv:1707.06347.

Rows are weighed by their user: one over the number of rows that count, and zero for those that do not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Keeps the ratio finite where a policy has moved far away: such rows are clipped or of no account anyway."""
ADVANTAGE_EPS = 1e-8


class PolicyLoss(NamedTuple):
    """Of each row, ``[N]``."""

    loss: Tensor
    approx_kl: Tensor
    is_clipped: Tensor  # whether the ratio has left the range, on whichever side


class Judged(NamedTuple):
    """What policy and value learn from, ``[T, B]``."""

    advantage: Tensor
    value: Tensor


def log_ratio_of(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return log of pi / pi_old, bounded."""
    return (log_prob - old_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> PolicyLoss:
    """Eq. 7: minus the lesser of the plain and the clipped surrogate."""
    ratio = log_ratio.exp()
    near = ratio.clamp(1.0 - clip, 1.0 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    # the estimator of KL(old || new) that is never negative: r - 1 - log r
    return PolicyLoss(loss, (ratio - log_ratio - 1.0).detach(), (near != ratio).to(loss.dtype))


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error; with ``clip``, the larger one of the value and of the value kept near the old."""
    error = (value - target).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return error * 0.5


def normalised(advantage: Tensor, counts: Tensor) -> Tensor:
    """Return advantages with mean 0 and deviation 1 over the rows that count; ``counts`` is 1 for those, else 0."""
    total = counts.sum().clamp_min(1.0)
    gap = advantage - (advantage * counts).sum() / total
    return gap / ((gap.square() * counts).sum() / total).sqrt().add(ADVANTAGE_EPS)


def vtrace(
    reward: Tensor, value: Tensor, is_end: Tensor, end_value: Tensor, ratio: Tensor,
    gamma: float, lam: float, rho_max: float, c_max: float,
) -> Judged:  # fmt: skip
    """Eq. 1 of arXiv:1802.01561, for values ``[T + 1, B]`` and ratios pi / mu ``[T, B]``; c carries lambda (remark 2).

    The advantage is r + gamma (V + lambda (v - V))' - V without rho: the loss that uses it weighs by the ratio itself.
    It is that of the paper where lambda is 1, and that of ``gae`` where the policies are equal.
    """
    delta = reward + gamma * torch.where(is_end > 0, end_value, value[1:]) - value[:-1]
    decay = gamma * lam * (1.0 - is_end)
    surprise, passed_back = ratio.clamp_max(rho_max) * delta, ratio.clamp_max(c_max) * decay
    correction = torch.zeros_like(value)  # v - V, and nothing behind the last row
    for t in reversed(range(len(reward))):
        torch.addcmul(surprise[t], passed_back[t], correction[t + 1], out=correction[t])
    return Judged(delta + decay * correction[1:], value[:-1] + correction[:-1])
