"""The tanh-Gaussian policy head: a = tanh(u), u ~ N(mean, std), appendix C of arXiv:1812.05905."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_LOG_CONSTANT = 2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)


class Sample(NamedTuple):
    """Actions in (-1, 1) with what their gradient needs; leaves have one row per state."""

    action: Tensor
    log_prob: Tensor
    noise_std: Tensor  # std * noise, which is also du/dlog_std
    raw_log_std: Tensor  # before clamping

    def first(self, rows: int) -> Sample:
        """Return the first rows only."""
        return Sample(self.action[:rows], self.log_prob[:rows], self.noise_std[:rows], self.raw_log_std[:rows])


def add_scaled(x: Tensor, y: Tensor, scale: float | Tensor) -> Tensor:
    """Return x + scale y in place, with one scale or as many as the shapes ask for."""
    return x.add_(y, alpha=scale) if isinstance(scale, float) else x.addcmul_(y, scale)


def sample(mean_log_std: Tensor, noise: Tensor) -> Sample:
    """Return actions and log-probabilities for network outputs ``[N, 2A]`` and standard normal noise ``[N, A]``."""
    mean, raw_log_std = mean_log_std.chunk(2, dim=1)
    log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    noise_std = log_std.exp().mul_(noise)
    u = mean + noise_std
    # Eq. 21 with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which neither overflows nor cancels
    log_density = softplus(u * -2.0).add_(u).mul_(2.0).sub_(log_std).addcmul_(noise, noise, value=-0.5)
    log_prob = log_density.sum(1).sub_(_LOG_CONSTANT * noise.shape[1])
    return Sample(u.tanh_(), log_prob, noise_std, raw_log_std)


def sample_gradient(drawn: Sample, d_action: Tensor, d_log_prob: float | Tensor) -> Tensor:
    """Return the gradient of the network outputs ``[N, 2A]`` through a reparametrised sample (Eq. 10).

    ``d_log_prob`` is the same for all rows, or one each.
    """
    action, _, noise_std, raw_log_std = drawn
    if isinstance(d_log_prob, Tensor):
        d_log_prob = d_log_prob.unsqueeze(1)
    # da/du = 1 - tanh(u)^2 and dlog_prob/du = 2 tanh(u)
    d_u = torch.addcmul(d_action, d_action, action.square(), value=-1.0)
    d_u = add_scaled(d_u, action, 2.0 * d_log_prob)
    d_log_std = (d_u * noise_std).sub_(d_log_prob)
    clamped = (raw_log_std < LOG_STD_MIN).logical_or_(raw_log_std > LOG_STD_MAX)
    return torch.cat((d_u, d_log_std.masked_fill_(clamped, 0.0)), dim=1)
