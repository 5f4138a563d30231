"""The losses of soft actor-critic as pure functions, each beside its gradient; equations of arXiv:1812.05905.

Losses are sums over a shard divided by the size of the whole batch, so that shards add up to the batch's mean. A
temperature is one for all rows, or one for each where rows are of several tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from roboloop.nets.heads import add_scaled

TensorMetrics = dict[str, Tensor]


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float | Tensor) -> Tensor:
    """Eqs. 2 and 3: r + discount * (min_e Q'_e - alpha log pi), with ``next_q`` as ``[E, N]``.

    ``discount`` is zero where the world ended and gamma^m elsewhere, so truncation bootstraps and termination does not.
    """
    next_value = add_scaled(next_q.amin(0), next_log_prob, -alpha)
    return torch.addcmul(reward, discount, next_value)


def critic_loss(q: Tensor, target: Tensor, batch_size: int) -> tuple[Tensor, TensorMetrics]:
    """Eq. 5: half the squared Bellman error of ``q [E, N]``, summed over critics."""
    loss = (q - target).square_().sum() * (0.5 / batch_size)
    return loss, {"critic_loss": loss, "q_mean": q.sum() / (q.shape[0] * batch_size)}


def critic_loss_gradient(q: Tensor, target: Tensor, batch_size: int) -> Tensor:
    """Eq. 6: the gradient of ``critic_loss`` by ``q``."""
    return (q - target).mul_(1.0 / batch_size)


def actor_loss(q: Tensor, log_prob: Tensor, alpha: float | Tensor, batch_size: int) -> tuple[Tensor, TensorMetrics]:
    """Eq. 9: alpha log pi - min_e Q_e for ``q [E, N]``."""
    entropy = log_prob.sum() * (-1.0 / batch_size)
    bonus = alpha * entropy if isinstance(alpha, float) else torch.dot(alpha, log_prob) * (-1.0 / batch_size)
    loss = q.amin(0).sum() * (-1.0 / batch_size) - bonus
    return loss, {"actor_loss": loss, "entropy": entropy}


def actor_loss_gradient(q: Tensor, alpha: float | Tensor, batch_size: int) -> tuple[Tensor, float | Tensor]:
    """Eq. 10: the gradients of ``actor_loss`` by ``q`` (only the least critic of a row counts) and by each log pi."""
    least = q.argmin(0, keepdim=True)
    d_q = torch.zeros_like(q).scatter_(0, least, -1.0 / batch_size)
    return d_q, alpha / batch_size


def temperature_gradient(entropy: float, target_entropy: float) -> float:
    """Eq. 18 in log space, J = log_alpha * (entropy - target): more entropy than wanted lowers the temperature."""
    return entropy - target_entropy


def task_weights(alphas: Sequence[float]) -> list[float]:
    """Return K softmax(-log alpha), which is K (1 / alpha_k) / sum_j 1 / alpha_j: the weights of Soft-Module's code.

    Their mean is one. The paper's softmax(-alpha) hardly tells small temperatures apart.
    """
    inverse = [1.0 / alpha for alpha in alphas]
    return [len(alphas) * one / math.fsum(inverse) for one in inverse]
