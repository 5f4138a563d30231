"""PPO's losses by hand; step sizes."""

from __future__ import annotations

import math

import pytest
import torch

from roboloop.algos.learner.learning_rate import LEAST_LR, MOST_LR, make_learning_rate
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.losses import MAX_LOG_RATIO, log_ratio_of, normalised, policy_loss, value_loss


def test_the_lesser_surrogate_counts() -> None:
    log_ratio, advantage = torch.tensor([1.5, 0.5, 1.5, 0.5]).log(), torch.tensor([2.0, 2.0, -2.0, -2.0])
    log_ratio.requires_grad_()
    loss, _, is_clipped = policy_loss(log_ratio, advantage, clip=0.2)
    torch.testing.assert_close(loss, -torch.tensor([1.2 * 2, 0.5 * 2, -1.5 * 2, -0.8 * 2]))
    assert is_clipped.tolist() == [1.0] * 4
    (slope,) = torch.autograd.grad(loss.sum(), log_ratio)
    torch.testing.assert_close(slope, torch.tensor([0.0, -0.5 * 2, 1.5 * 2, 0.0]))


def test_inside_the_range_nothing_is_clipped() -> None:
    loss, _, is_clipped = policy_loss(torch.tensor([1.1, 1.0]).log(), torch.tensor([2.0, -1.0]), clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([-2.2, 1.0]))
    assert is_clipped.tolist() == [0.0, 0.0]


def test_approx_kl_is_zero_without_change_and_never_negative() -> None:
    for log_ratio in (0.0, 0.3, -0.3):
        kl = policy_loss(torch.tensor([log_ratio]), torch.ones(1), 0.2).approx_kl.item()
        assert kl == pytest.approx(math.exp(log_ratio) - 1 - log_ratio, abs=1e-6)


def test_a_policy_that_has_moved_far_away_stays_finite() -> None:
    log_ratio = log_ratio_of(torch.tensor([500.0, -500.0]), torch.zeros(2))
    assert log_ratio.tolist() == [MAX_LOG_RATIO, -MAX_LOG_RATIO]


def test_clipped_value_loss_by_hand() -> None:
    value, old = torch.tensor([2.0, 2.0, 0.1], requires_grad=True), torch.zeros(3)
    target = torch.tensor([3.0, 1.0, 1.0])
    torch.testing.assert_close(value_loss(value, old, target, None), torch.tensor([0.5, 0.5, 0.5 * 0.81]))
    loss = value_loss(value, old, target, 0.2)
    torch.testing.assert_close(loss, torch.tensor([0.5 * 2.8**2, 0.5, 0.5 * 0.81]))
    (slope,) = torch.autograd.grad(loss.sum(), value)
    torch.testing.assert_close(slope, torch.tensor([0.0, 1.0, -0.9]))


def test_advantages_are_normalised_over_the_rows_that_count() -> None:
    found = normalised(torch.tensor([1.0, 2.0, 3.0, 1e6]), torch.tensor([1.0, 1.0, 1.0, 0.0]))[:3]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found.std(unbiased=False).item() == pytest.approx(1.0, rel=1e-4)
    assert normalised(torch.tensor([1.0, 2.0]), torch.zeros(2)).isfinite().all()


def test_a_linear_step_size_ends_at_zero_and_a_constant_one_does_not_move() -> None:
    linear = make_learning_rate(PPOConfig(lr=0.1, lr_schedule="linear"))
    assert [linear.at(p) for p in (0.0, 0.5, 1.0, 1.5)] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    constant = make_learning_rate(PPOConfig(lr=0.1))
    constant.after_update(100.0)
    assert constant.at(0.9) == 0.1


def test_the_kl_schedule_shortens_steps_that_go_too_far_and_stays_within_bounds() -> None:
    rate = make_learning_rate(PPOConfig(lr=1e-3, lr_schedule="kl", target_kl=0.01))
    for kl, wanted in ((0.021, 1e-3 / 1.5), (0.019, 1e-3 / 1.5), (0.006, 1e-3 / 1.5), (0.004, 1e-3)):
        rate.after_update(kl)
        assert rate.at(0.0) == pytest.approx(wanted)
    copy = make_learning_rate(PPOConfig(lr_schedule="kl"))
    copy.load(rate.state())
    assert copy.at(0.5) == rate.at(0.5)
    for kl, bound in ((1.0, LEAST_LR), (0.0, MOST_LR)):
        for _ in range(100):
            rate.after_update(kl)
        assert rate.at(0.0) == bound
