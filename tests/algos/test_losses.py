"""Losses of SAC, temperature and Adam by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.optimizer import Adam, FlatAdam
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.sac import SAC
from tests.algos.test_sac import SPEC

NOISE = Rows(now=None, next=None)


class Said(SAC):
    """SAC whose critics and actor say what they are told."""

    def tell(self, target_q: Tensor, q: Tensor, log_prob: Tensor, alpha: float) -> Said:
        """Take what the networks say, and a temperature."""
        self.told = {id(self.target_critics): target_q, id(self.critics): q}
        self.density = log_prob
        with torch.no_grad():
            self.log_alpha.fill_(math.log(alpha))
        return self

    def values(self, critics: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        """Return what it was told."""
        return self.told[id(critics)]

    def draw(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return no action, and the density that it was told."""
        return torch.zeros(len(self.density), 2), self.density


def said(target_q: Sequence[Sequence[float]], q: Sequence[Sequence[float]], log_prob: Sequence[float]) -> Said:
    learner = Said(SACConfig(hidden=(4,)), SPEC)
    return learner.tell(torch.tensor(target_q), torch.tensor(q), torch.tensor(log_prob), 0.5)


def rows(reward: Sequence[float], discount: Sequence[float]) -> Rows:
    nothing = torch.zeros(len(reward), 0)
    return Rows(
        obs=nothing, next_obs=nothing, action=nothing, reward=torch.tensor(reward), discount=torch.tensor(discount)
    )


def test_truncation_bootstraps_and_termination_does_not() -> None:
    # targets: truncated or running, 1 + 0.5 (10 - 0.5 * 2) = 5.5; terminated, 1
    learner = said([[10.0, 10.0], [12.0, 9.0]], [[5.5, 1.0], [5.5, 1.0]], [2.0, 2.0])
    assert learner.critic_loss(rows([1.0, 1.0], [0.5, 0.0]), NOISE)[0].item() == 0.0
    off = said([[10.0, 10.0], [12.0, 9.0]], [[5.5, 3.0], [4.5, 1.0]], [2.0, 2.0])
    loss, metrics = off.critic_loss(rows([1.0, 1.0], [0.5, 0.0]), NOISE)
    assert loss.item() == 0.5 * (2.0**2 + 1.0**2) / 2
    assert metrics["q_mean"].item() == 14 / 4


def test_actor_loss_by_hand() -> None:
    learner = said([], [[1.0, 5.0], [3.0, 4.0]], [2.0, -1.0])
    loss, metrics = learner.actor_loss(rows([0.0, 0.0], [0.0, 0.0]), NOISE)
    assert metrics["actor_loss"].item() == ((0.5 * 2 - 1) + (0.5 * -1 - 4)) / 2
    assert metrics["entropy"].item() == -0.5
    assert metrics["alpha"].item() == 0.5
    # eq. 18 in log space, with an entropy of -0.5 where -2 is wanted
    assert loss.item() == pytest.approx(metrics["actor_loss"].item() + math.log(0.5) * 1.5)


@pytest.mark.parametrize(("log_prob", "gradient"), [(1.0, 1.0), (3.0, -1.0)])
def test_temperature_falls_when_the_policy_is_more_random_than_wanted_and_rises_when_less(
    log_prob: float, gradient: float
) -> None:
    learner = said([], [[0.0], [0.0]], [log_prob])  # -dim(A) = -2 is wanted
    loss, _ = learner.actor_loss(rows([0.0], [0.0]), NOISE)
    assert torch.autograd.grad(loss, learner.log_alpha)[0].item() == gradient


def test_a_fixed_temperature_has_no_step() -> None:
    learner = SAC(SACConfig(hidden=(4,), alpha=0.3), SPEC)
    assert "log_alpha" not in learner.steps()[1].of
    assert not learner.log_alpha.requires_grad
    assert learner.log_alpha.exp().item() == pytest.approx(0.3)


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
