"""The losses of soft actor-critic as pure functions returning (loss, metrics); equations of arXiv:1812.05905."""

from __future__ import annotations

import torch
from torch import Tensor

TensorMetrics = dict[str, Tensor]


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float) -> Tensor:
    """Eqs. 2 and 3: r + discount * (min_e Q'_e - alpha log pi), with ``next_q`` as ``[E, N]``.

    ``discount`` is zero where the world ended and gamma^m elsewhere, so truncation bootstraps and termination does not.
    """
    next_value = next_q.amin(0).sub_(next_log_prob, alpha=alpha)
    return torch.addcmul(reward, discount, next_value)


def critic_loss(q: Tensor, target: Tensor, batch_size: int) -> tuple[Tensor, TensorMetrics]:
    """Eq. 5: half the squared Bellman error of ``q [E, N]``, summed over critics, averaged over the whole batch."""
    loss = (q - target).square().sum() * (0.5 / batch_size)
    return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().sum() / (q.shape[0] * batch_size)}


def actor_loss(q: Tensor, log_prob: Tensor, alpha: float, batch_size: int) -> tuple[Tensor, TensorMetrics]:
    """Eq. 9: alpha log pi - min_e Q_e for ``q [E, N]``, averaged over the whole batch."""
    loss = (alpha * log_prob - q.amin(0)).sum() / batch_size
    return loss, {"actor_loss": loss.detach(), "entropy": -log_prob.detach().sum() / batch_size}


def temperature_gradient(entropy: float, target_entropy: float) -> float:
    """Eq. 18 in log space, J = log_alpha * (entropy - target): more entropy than wanted lowers the temperature."""
    return entropy - target_entropy
