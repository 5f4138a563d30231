"""CrossQ (arXiv:1902.05605): soft actor-critic with batch normalisation in place of target networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roboloop.algos.learning import Adam, Ensemble, Learner, LearnerConfig, Loss, Rows, Step, mlp, record, tanh_gaussian
from roboloop.algos.limits import above_zero, at_least_one, has_layers


@dataclass(frozen=True)
class CrossQConfig(LearnerConfig):
    """Batch normalisation in deep reinforcement learning."""

    name: str = "crossq"
    """Which algorithm this section configures."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = (1024, 1024)
    """Widths of the hidden layers of the critics."""
    lr: float = 1e-3
    """Adam step size of actor, critics and temperature."""
    beta1: float = 0.5
    """Of Adam."""
    policy_delay: int = 3
    """Critic updates per actor update."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        super().check()
        at_least_one(self, "policy_delay")
        above_zero(self, "lr")
        has_layers(self, "hidden")
        has_layers(self, "critic_hidden")


class CrossQ(Learner):
    """Section 3 of the paper."""

    cfg: CrossQConfig

    def build(self) -> None:
        """Make actor, two critics and temperature."""
        cfg = self.cfg
        inputs = self.obs_dim + self.action_dim
        self.actor = mlp([self.obs_dim, *cfg.hidden, 2 * self.action_dim], norm="batch")
        self.critics = Ensemble(lambda: mlp([inputs, *cfg.critic_hidden, 1], norm="batch"), 2)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def steps(self) -> tuple[Step, ...]:
        """Return the critics' step, and at each third update that of actor and temperature."""
        adam = Adam(self.cfg.lr, beta1=self.cfg.beta1)
        return (
            Step("critic_loss", of={"critics": adam}),
            Step("actor_loss", of={"actor": adam, "log_alpha": adam}, every=self.cfg.policy_delay),
        )

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return what actions are drawn by."""
        return {"now": (self.action_dim,), "next": (self.action_dim,)}

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Bellman error where both states are normalised together (eq. 2)."""
        with torch.no_grad():
            next_action, log_prob = tanh_gaussian(self.actor.eval()(batch.next_obs), noise.next)
        both = torch.cat((torch.cat((batch.obs, batch.action), 1), torch.cat((batch.next_obs, next_action), 1)))
        q, next_q = self.critics.train()(both).squeeze(2).chunk(2, 1)
        with torch.no_grad():
            soft = next_q.amin(0) - self.log_alpha.exp() * log_prob
            target = batch.reward + batch.discount * soft
        return (q - target).square().mean(1).sum(), {"q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Soft actor-critic's, with critics that normalise by what they have seen so far."""
        action, log_prob = tanh_gaussian(self.actor.train()(batch.obs), noise.now)
        q = self.critics.eval()(torch.cat((batch.obs, action), 1)).squeeze(2).amin(0)
        entropy = -log_prob.mean()
        loss = (self.log_alpha.exp().detach() * log_prob - q).mean()
        temperature_loss = self.log_alpha * (entropy.detach() + self.action_dim)
        return loss + temperature_loss, {"entropy": entropy, "alpha": self.log_alpha.exp()}

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Return drawn actions, or the best guess."""
        return tanh_gaussian(self.actor(obs), noise)[0]


SPEC = record("crossq", CrossQConfig, CrossQ)
