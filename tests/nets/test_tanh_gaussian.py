"""tanh-Gaussian actions: their density, where it is hard to compute, and its gradient."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from roboloop.nets.modules import LOG_STD_MAX, tanh_gaussian


def test_log_prob_equals_torch_distributions() -> None:
    out, noise = torch.randn(50, 6, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64)
    _, log_prob = tanh_gaussian(out, noise)
    normal = torch.distributions.Normal(out[:, :3], out[:, 3:].clamp(max=LOG_STD_MAX).exp())
    u = normal.loc + normal.scale * noise
    inside = u.abs().amax(1) < 8  # 1 - tanh(u)^2 is nothing beyond
    wanted = (normal.log_prob(u) - torch.log1p(-u.tanh().square())).sum(1)
    torch.testing.assert_close(log_prob[inside], wanted[inside])


def test_log_prob_is_finite_where_tanh_saturates() -> None:
    action, log_prob = tanh_gaussian(torch.tensor([[60.0, -60.0, 2.0, -30.0]]), torch.ones(1, 2))
    assert torch.isfinite(log_prob).all()
    assert action.abs().max() <= 1.0


def test_gradients_are_those_of_the_formula_also_where_log_std_is_clamped() -> None:
    out = torch.randn(40, 4, dtype=torch.float64)
    out[:5, 2:], out[5:10, 2:] = 3.0, -25.0
    noise, d_action = torch.randn(40, 2, dtype=torch.float64), torch.randn(40, 2, dtype=torch.float64)
    leaf = out.requires_grad_()
    mean, log_std = leaf[:, :2], leaf[:, 2:].clamp(-20.0, 2.0)
    u = mean + log_std.exp() * noise
    by_hand = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
    by_hand = by_hand - (2 * (math.log(2) - u - functional.softplus(-2 * u))).sum(1)
    (wanted,) = torch.autograd.grad((u.tanh() * d_action).sum() + 0.3 * by_hand.sum(), leaf)
    action, log_prob = tanh_gaussian(leaf, noise)
    (found,) = torch.autograd.grad((action * d_action).sum() + 0.3 * log_prob.sum(), leaf)
    torch.testing.assert_close(found, wanted)


def test_without_noise_it_is_the_squashed_mean() -> None:
    out = torch.randn(5, 4)
    assert torch.equal(tanh_gaussian(out, None)[0], out[:, :2].tanh())
