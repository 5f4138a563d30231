"""Losses of critics that learn from examples, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from roboloop.algos.guided import example_losses as losses


def test_the_value_penalty_is_zero_inside_its_bounds_and_on_them() -> None:
    q = torch.tensor([[-10.0, 0.0, 3.0], [-9.0, 2.0, 10.0]], requires_grad=True)
    penalty = losses.value_penalty(q, -10.0, torch.tensor([3.0, 2.0, 10.0]))
    assert not penalty.any()
    assert not torch.autograd.grad(penalty.sum(), q)[0].any()


def test_the_value_penalty_outside_its_bounds_by_hand() -> None:
    q = torch.tensor([[5.0, -12.0, 0.0], [3.0, 4.0, -10.5]], requires_grad=True)
    penalty = losses.value_penalty(q, -10.0, torch.tensor([3.0, 2.0, 10.0]))
    assert penalty.tolist() == [[2.0, 2.0, 0.0], [0.0, 2.0, 0.125]]
    (found,) = torch.autograd.grad(penalty.sum(), q)
    assert found.tolist() == [[2.0, -2.0, 0.0], [0.0, 2.0, -0.5]]


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
    loss = losses.classifier_loss(logits, torch.tensor([odds, odds]), torch.tensor([False, True]), gamma)
    assert loss[0].tolist() == pytest.approx([of_replay, of_example])


def test_a_perfect_classifier_of_the_future_has_no_gradient() -> None:
    """Where C / (1 - C) is gamma w, nothing pulls: recursion is at rest."""
    odds = torch.tensor([0.5, 2.0])
    logits = odds.log()[None].requires_grad_()
    loss = losses.classifier_loss(logits, odds, torch.tensor([False, False]), 0.9)
    assert torch.autograd.grad(loss.sum(), logits)[0].abs().max() < 1e-7
