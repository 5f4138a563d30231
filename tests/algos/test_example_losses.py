"""Losses of critics that learn from examples: by hand, and their gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from roboloop.algos.mtsac import example_losses as losses
from roboloop.algos.mtsac.objectives import Bounded, Classifier, SoftBellman


def test_the_value_penalty_is_zero_inside_its_bounds_and_on_them() -> None:
    q, high = torch.tensor([[-10.0, 0.0, 3.0], [-9.0, 2.0, 10.0]]), torch.tensor([3.0, 2.0, 10.0])
    assert losses.value_penalty(q, -10.0, high, 7.0, 3).item() == 0.0
    assert not losses.value_penalty_gradient(q, -10.0, high, 7.0, 3).any()


def test_the_value_penalty_outside_its_bounds_by_hand() -> None:
    q, high = torch.tensor([[5.0, -12.0, 0.0], [3.0, 4.0, -10.5]]), torch.tensor([3.0, 2.0, 10.0])
    squares = 2.0**2 + 2.0**2 + 2.0**2 + 0.5**2
    assert losses.value_penalty(q, -10.0, high, 10.0, 3).item() == pytest.approx(0.5 * 10.0 / 3 * squares)
    wanted = torch.tensor([[2.0, -2.0, 0.0], [0.0, 2.0, -0.5]]) * (10.0 / 3)
    torch.testing.assert_close(losses.value_penalty_gradient(q, -10.0, high, 10.0, 3), wanted)


def test_the_gradient_of_the_value_penalty_equals_autograd() -> None:
    q, high = (20 * torch.randn(2, 9)).requires_grad_(), 5 * torch.randn(9)
    (wanted,) = torch.autograd.grad(losses.value_penalty(q, -7.0, high, 3.0, 18), q)
    torch.testing.assert_close(losses.value_penalty_gradient(q.detach(), -7.0, high, 3.0, 18), wanted)


def test_odds_are_those_of_the_least_certain_critic_and_stay_finite() -> None:
    next_logits = torch.tensor([[math.log(3.0), 80.0, -90.0], [0.0, 99.0, -80.0]])
    odds = losses.success_odds(next_logits, torch.tensor([0.9, 0.9, 0.9]))
    assert odds[0].item() == pytest.approx(0.9)  # V = 1/2
    assert odds[1].item() == pytest.approx(0.9 * (1 - 1e-7) / 1e-7, rel=1e-4)
    assert odds[2].item() == pytest.approx(0.9 * 1e-7, rel=1e-4)


def test_the_classifiers_loss_is_the_weighted_cross_entropy_of_the_paper() -> None:
    gamma, chance, later = 0.9, 0.3, 0.6
    odds = gamma * later / (1 - later)
    target, weight = odds / (1 + odds), 1 + odds
    of_replay = -weight * (target * math.log(chance) + (1 - target) * math.log(1 - chance))
    of_example = -(1 - gamma) * math.log(chance)
    logits = torch.full((1, 2), math.log(chance / (1 - chance)), dtype=torch.float64)
    is_example = torch.tensor([False, True])
    loss = losses.classifier_loss(logits, torch.tensor([odds, odds]), is_example, gamma, 2)
    assert loss.item() == pytest.approx((of_replay + of_example) / 2)


def test_the_gradient_of_the_classifiers_loss_equals_autograd() -> None:
    logits = (4 * torch.randn(2, 8)).requires_grad_()
    terms = torch.rand(8) * 5, torch.arange(8) % 3 == 0, 0.95, 16
    (wanted,) = torch.autograd.grad(losses.classifier_loss(logits, *terms), logits)
    torch.testing.assert_close(losses.classifier_loss_gradient(logits.detach(), *terms), wanted)


def test_a_perfect_classifier_of_the_future_has_no_gradient() -> None:
    """Where C / (1 - C) is gamma w, nothing pulls: recursion is at rest."""
    odds = torch.tensor([0.5, 2.0])
    logits = odds.log()[None]
    assert losses.classifier_loss_gradient(logits, odds, torch.tensor([False, False]), 0.9, 2).abs().max() < 1e-7


def test_examples_are_bounded_by_success_for_ever_and_other_rows_by_their_own_tasks_cap() -> None:
    reward, discount = torch.zeros(4), torch.zeros(4)
    is_example, cap = torch.tensor([True, False, True, False]), torch.tensor([2.0, -1.0])
    bounded = Bounded(reward, discount, 4, is_example, cap, top=10.0, penalty=5.0)
    q, next_q = torch.tensor([[9.0, 3.0, 12.0, 0.0]]), torch.zeros(1, 4)
    gradient, metrics = bounded.critic(q, next_q, torch.zeros(4), 0.0)
    plain, _ = SoftBellman(reward, discount, 4).critic(q, next_q, torch.zeros(4), 0.0)
    torch.testing.assert_close(gradient - plain, torch.tensor([[0.0, 1.0, 2.0, 1.0]]) * (5.0 / 4))
    assert metrics["value_penalty"].item() == pytest.approx(0.5 * 5.0 / 4 * (1 + 4 + 1))


def test_a_classifiers_values_are_probabilities_and_pull_back_as_autograd_does() -> None:
    classifier = Classifier(torch.ones(3), 3, torch.zeros(3, dtype=torch.bool), 0.9)
    logits, d_values = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    values = classifier.values(logits)
    (wanted,) = torch.autograd.grad((values * d_values).sum(), logits)
    torch.testing.assert_close(classifier.vjp(values.detach(), d_values), wanted)
