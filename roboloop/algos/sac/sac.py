"""Soft actor-critic (arXiv:1812.05905): twin critics, learned temperature; equations of the paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Learner, Loss, Seen, Step, target_of
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.sac.config import SACSettings
from roboloop.nets.modules import Ensemble, make_net, tanh_gaussian


class SAC(Learner):
    """Actor, critics with their targets, and the temperature that holds the actor's entropy."""

    cfg: SACSettings

    def build(self) -> None:
        """Make the modules."""
        cfg = self.cfg
        self.actor, self.critics = self.make_actor(), self.make_critics()
        self.target_critics = target_of(self.critics)
        initial = cfg.initial_alpha if cfg.alpha is None else cfg.alpha
        log_alpha = torch.tensor(math.log(initial) if initial else -math.inf)
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=cfg.alpha is None)
        # Haarnoja's default is minus the number of action dimensions
        self.target_entropy = -float(self.action_dim) if cfg.target_entropy is None else cfg.target_entropy

    def net(self, more: int, outputs: int) -> nn.Module:
        """Return a network from an observation and so many more numbers."""
        return make_net(self.cfg, self.obs_dim + more, outputs)

    def make_actor(self) -> nn.Module:
        """Return the network from observation to mean and log deviation of the action before tanh."""
        return self.net(0, 2 * self.action_dim)

    def make_critics(self) -> nn.Module:
        """Return the networks from observation and action to values ``[E, rows, 1]``."""
        return Ensemble(lambda: self.net(self.action_dim, 1), self.cfg.num_critics)

    def steps(self) -> tuple[Step, ...]:
        """Return algorithm 1: the critics' step, then that of actor and temperature."""
        cfg = self.cfg
        critics = {"critics": Adam(cfg.critic_lr, max_grad_norm=cfg.max_grad_norm)}
        actor = {"actor": Adam(cfg.actor_lr, max_grad_norm=cfg.max_grad_norm)}
        if cfg.alpha is None:
            actor["log_alpha"] = Adam(cfg.alpha_lr, scheduled=False)
        return (
            Step("critic_loss", of=critics, follow={"target_critics": "critics"}, tau=cfg.tau),
            Step("actor_loss", of=actor),
        )

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return what actions are drawn by, in this state and in the next."""
        return {"now": (self.action_dim,), "next": (self.action_dim,)}

    def draw(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return actions and the logarithm of their density; without noise, the likeliest."""
        return tanh_gaussian(self.actor(obs), noise)

    def values(self, critics: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        """Return what each critic says of actions, ``[E, rows]``."""
        q: Tensor = critics(torch.cat((obs, action), 1)).squeeze(2)
        return q

    def paid(self, batch: Rows) -> Tensor:
        """Return the rewards as they are learned from."""
        reward: Tensor = batch.reward
        return reward if self.cfg.reward_scale == 1.0 else self.cfg.reward_scale * reward

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Half the squared soft Bellman error, summed over critics (eqs. 2, 3 and 5).

        ``discount`` is zero where the world ended, so truncation bootstraps and termination does not.
        """
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, noise.next)
            next_q = self.values(self.target_critics, batch.next_obs, action).amin(0)
            target = self.paid(batch) + batch.discount * (next_q - self.log_alpha.exp() * log_prob)
        q = self.values(self.critics, batch.obs, batch.action)
        return 0.5 * (q - target).square().mean(1).sum(), {"q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Eq. 9: alpha log pi - min Q; and eq. 18 in log space: more entropy than wanted lowers the temperature."""
        action, log_prob = self.draw(batch.obs, noise.now)
        q = self.values(self.critics, batch.obs, action).amin(0)
        alpha, entropy = self.log_alpha.exp().detach(), -log_prob.mean()
        loss = -alpha * entropy - q.mean()
        said = {"actor_loss": loss, "entropy": entropy, "alpha": alpha}
        if self.cfg.alpha is None:
            loss = loss + self.log_alpha * (entropy.detach() - self.target_entropy)
        return loss, said

    def act(self, obs: Seen, noise: Tensor | None) -> Tensor:
        """Return drawn actions, or tanh(mean)."""
        return self.draw(obs, noise)[0]
