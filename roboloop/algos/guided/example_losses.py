"""Losses of critics that learn from examples of success, row by row; formulas of arXiv:2407.03311 (VPACE) and
arXiv:2103.12656 (RCE).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

MAX_LOGIT = 16.118095
"""Of a probability of 1 - 1e-7: what is expected of the future is never quite certain."""


def value_penalty(q: Tensor, low: float, high: Tensor) -> Tensor:
    """Return half the squared distance of ``q [E, N]`` from what a value can be, ``low`` to each row's ``high``."""
    return 0.5 * ((q - high).clamp(min=0.0).square() + (low - q).clamp(min=0.0).square())


def success_odds(next_logits: Tensor, discount: Tensor) -> Tensor:
    """Return gamma w of each row: the discounted odds w = V / (1 - V) of success later, by the least certain critic."""
    return discount * next_logits.amin(0).clamp(-MAX_LOGIT, MAX_LOGIT).exp()


def classifier_loss(logits: Tensor, odds: Tensor, is_example: Tensor, gamma: float) -> Tensor:
    """Return (1 - gamma) BCE(C, 1) of examples and (1 + gamma w) BCE(C, gamma w / (1 + gamma w)) of other rows.

    The latter is gamma w (-log C) - log(1 - C): the weight and the quotient cancel. ``is_example`` is 1 or 0.
    """
    of_success = torch.where(is_example, 1.0 - gamma, odds)
    return of_success * softplus(-logits) + ~is_example * softplus(logits)
