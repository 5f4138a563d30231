"""Losses of critics that learn from examples of success, each beside its gradient; formulas of arXiv:2407.03311 (VPACE)
and arXiv:2103.12656 (RCE).

Losses are sums over a shard divided by the size of the whole batch, so that shards add up to the batch's mean.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

MAX_LOGIT = 16.118095
"""Of a probability of 1 - 1e-7: what is expected of the future is never quite certain."""


def value_penalty(q: Tensor, low: float, high: Tensor, weight: float, batch_size: int) -> Tensor:
    """Return half the squared distance of ``q [E, N]`` from what a value can be, ``low`` to each row's ``high``."""
    outside = (q - high).clamp(min=0.0).square() + (low - q).clamp(min=0.0).square()
    return outside.sum() * (0.5 * weight / batch_size)


def value_penalty_gradient(q: Tensor, low: float, high: Tensor, weight: float, batch_size: int) -> Tensor:
    """Return the gradient of ``value_penalty`` by ``q``: zero inside the bounds."""
    return ((q - high).clamp_(min=0.0) - (low - q).clamp_(min=0.0)).mul_(weight / batch_size)


def success_odds(next_logits: Tensor, discount: Tensor) -> Tensor:
    """Return gamma w of each row: the discounted odds w = V / (1 - V) of success later, by the least certain critic."""
    return discount * next_logits.amin(0).clamp(-MAX_LOGIT, MAX_LOGIT).exp()


def classifier_loss(logits: Tensor, odds: Tensor, is_example: Tensor, gamma: float, batch_size: int) -> Tensor:
    """Return (1 - gamma) BCE(C, 1) of examples and (1 + gamma w) BCE(C, gamma w / (1 + gamma w)) of other rows.

    The latter is gamma w (-log C) - log(1 - C): the weight and the quotient cancel.
    """
    of_success = torch.where(is_example, 1.0 - gamma, odds)
    losses = of_success * softplus(-logits) + ~is_example * softplus(logits)
    return losses.sum() * (1.0 / batch_size)


def classifier_loss_gradient(logits: Tensor, odds: Tensor, is_example: Tensor, gamma: float, batch_size: int) -> Tensor:
    """Return the gradient of ``classifier_loss`` by the logits ``[E, N]``."""
    of_success = torch.where(is_example, 1.0 - gamma, odds)
    chance = logits.sigmoid()
    return (~is_example * chance - of_success * (1.0 - chance)).mul_(1.0 / batch_size)
