"""Losses, temperature and Adam by hand."""

from __future__ import annotations

import math

import pytest
import torch

from roboloop.algos.learner.adam import Adam, FlatAdam
from roboloop.algos.mtsac.losses import (
    actor_loss,
    actor_loss_gradient,
    critic_loss,
    critic_loss_gradient,
    td_target,
    temperature_gradient,
)
from roboloop.algos.mtsac.temperature import FixedTemperature, LearnedTemperature


def test_truncation_bootstraps_and_termination_does_not() -> None:
    reward, discount = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])  # truncated or running; terminated
    next_q, next_log_prob = torch.tensor([[10.0, 10.0], [12.0, 9.0]]), torch.tensor([2.0, 2.0])
    target = td_target(reward, discount, next_q, next_log_prob, alpha=0.5)
    assert target.tolist() == [1.0 + 0.5 * (10.0 - 0.5 * 2.0), 1.0]


def test_critic_loss_by_hand() -> None:
    q, target = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0])
    loss, metrics = critic_loss(q, target, batch_size=2)
    assert loss.item() == 0.5 * (1 + 0 + 4 + 4) / 2
    assert metrics["q_mean"].item() == 7 / 4


def test_actor_loss_by_hand() -> None:
    q, log_prob = torch.tensor([[1.0, 5.0], [3.0, 4.0]]), torch.tensor([2.0, -1.0])
    loss, metrics = actor_loss(q, log_prob, alpha=0.5, batch_size=2)
    assert loss.item() == ((0.5 * 2 - 1) + (0.5 * -1 - 4)) / 2
    assert metrics["entropy"].item() == -0.5


def test_loss_gradients_equal_autograd() -> None:
    q, target = torch.randn(2, 8, requires_grad=True), torch.randn(8)
    log_prob = torch.randn(8, requires_grad=True)
    (wanted,) = torch.autograd.grad(critic_loss(q, target, 16)[0], q)
    torch.testing.assert_close(critic_loss_gradient(q.detach(), target, 16), wanted)
    wanted_q, wanted_log_prob = torch.autograd.grad(actor_loss(q, log_prob, 0.3, 16)[0], (q, log_prob))
    d_q, d_log_prob = actor_loss_gradient(q.detach(), 0.3, 16)
    torch.testing.assert_close(d_q, wanted_q)
    torch.testing.assert_close(torch.full((8,), d_log_prob), wanted_log_prob)


def test_shard_losses_add_up_to_the_batch_mean() -> None:
    q, target = torch.randn(2, 8), torch.randn(8)
    parts = [critic_loss(q[:, rows], target[rows], 8)[0] for rows in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(parts[0] + parts[1], critic_loss(q, target, 8)[0])


@pytest.mark.parametrize(("entropy", "sign"), [(-1.0, -1), (-3.0, 1)])
def test_temperature_falls_when_the_policy_is_more_random_than_wanted_and_rises_when_less(
    entropy: float, sign: int
) -> None:
    temperature = LearnedTemperature(initial_alpha=1.0, target_entropy=-2.0, lr=0.1)
    temperature.update(entropy)
    assert math.copysign(1, temperature.alpha - 1.0) == sign
    assert temperature_gradient(entropy, -2.0) == -sign


def test_learned_temperature_equals_torch_adam_on_log_alpha() -> None:
    log_alpha = torch.tensor(math.log(0.2), dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([log_alpha], lr=0.01)
    temperature = LearnedTemperature(0.2, target_entropy=-4.0, lr=0.01)
    for entropy in (3.0, -1.0, -9.0, -5.0):
        log_alpha.grad = torch.tensor(entropy + 4.0, dtype=torch.float64)
        adam.step()
        temperature.update(entropy)
    assert temperature.alpha == pytest.approx(log_alpha.exp().item(), rel=1e-9)


def test_fixed_temperature_never_moves() -> None:
    temperature = FixedTemperature(0.3)
    temperature.update(100.0)
    assert temperature.alpha == 0.3


def test_flat_adam_equals_torch_adam() -> None:
    param, m, v, step = torch.randn(100), torch.zeros(100), torch.zeros(100), torch.zeros(())
    reference = param.clone().requires_grad_()
    fused, plain = torch.optim.Adam([reference], lr=0.01, fused=True), param.clone().requires_grad_()
    slow = torch.optim.Adam([plain], lr=0.01, foreach=False)
    adam = FlatAdam(param, m, v, step, Adam(0.01))
    for _ in range(10):
        grad = torch.randn(100)
        reference.grad, plain.grad = grad.clone(), grad.clone()
        fused.step()
        slow.step()
        step += 1
        adam.update(grad)
    assert torch.equal(param, reference.detach())
    torch.testing.assert_close(param, plain.detach(), atol=1e-6, rtol=1e-6)
