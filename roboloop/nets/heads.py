"""The tanh-Gaussian policy head: a = tanh(u), u ~ N(mean, std), appendix C of arXiv:1812.05905."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Sample(NamedTuple):
    """Actions in (-1, 1) with what their gradient needs; leaves have one row per state."""

    action: Tensor
    log_prob: Tensor
    noise_std: Tensor  # std * noise, which is also du/dlog_std
    log_std_free: Tensor  # 1 where log_std is inside its bounds, else 0


def sample(mean_log_std: Tensor, noise: Tensor) -> Sample:
    """Return actions and log-probabilities for network outputs ``[N, 2A]`` and standard normal noise ``[N, A]``."""
    mean, raw_log_std = mean_log_std.chunk(2, dim=1)
    log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    noise_std = log_std.exp().mul_(noise)
    u = mean + noise_std
    # Eq. 26 with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which does not overflow
    squash = softplus(-2 * u).add_(u).sub_(math.log(2.0)).mul_(2.0)
    log_prob = squash.sub_(log_std).sub_(noise.square().mul_(0.5)).sub_(_HALF_LOG_2PI).sum(1)
    return Sample(u.tanh_(), log_prob, noise_std, (log_std == raw_log_std).float())


def sample_gradient(drawn: Sample, d_action: Tensor, d_log_prob: Tensor) -> Tensor:
    """Return the gradient of the network outputs ``[N, 2A]`` through a reparametrised sample (Eq. 11)."""
    action, _, noise_std, log_std_free = drawn
    d_log_prob = d_log_prob.unsqueeze(1)
    # d log_prob / du = 2 tanh(u) and da/du = 1 - tanh(u)^2
    d_u = torch.addcmul(d_action, d_action, action.square(), value=-1.0).add_(action * d_log_prob, alpha=2.0)
    d_log_std = (d_u * noise_std).sub_(d_log_prob).mul_(log_std_free)
    return torch.cat((d_u, d_log_std), dim=1)
