"""TD3 (arXiv:1802.09477): config, networks, losses and the record that roboloop finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from roboloop.algos.learning import Adam, Ensemble, Learner, LearnerConfig, Loss, Rows, Step, mlp, record, target_of
from roboloop.algos.limits import above_zero, at_least_one, has_layers, within_one


@dataclass(frozen=True)
class TD3Config(LearnerConfig):
    """Twin delayed deep deterministic policy gradient."""

    name: str = "td3"
    """Which algorithm this section configures."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    tau: float = 0.005
    """Fraction by which targets follow at each delayed update."""
    actor_lr: float = 1e-3
    """Adam step size of the actor."""
    critic_lr: float = 1e-3
    """Adam step size of the critics."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    explore_noise: float = 0.1
    """Standard deviation of exploration noise; actions reach from -1 to 1."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions."""
    noise_clip: float = 0.5
    """Largest noise on target actions."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        super().check()
        at_least_one(self, "policy_delay")
        above_zero(self, "actor_lr", "critic_lr")
        within_one(self, "tau")
        has_layers(self, "hidden")


class TD3(Learner):
    """Algorithm 1 of the paper."""

    cfg: TD3Config

    def build(self) -> None:
        """Make actor, two critics, and their targets."""
        hidden = self.cfg.hidden
        self.actor = mlp([self.obs_dim, *hidden, self.action_dim])
        self.critics = Ensemble(lambda: mlp([self.obs_dim + self.action_dim, *hidden, 1]), 2)
        self.target_actor, self.target_critics = target_of(self.actor), target_of(self.critics)

    def steps(self) -> tuple[Step, ...]:
        """Return the critics' step, and the actor's at each second update."""
        cfg = self.cfg
        follow = {"target_actor": "actor", "target_critics": "critics"}
        return (
            Step("critic_loss", of={"critics": Adam(cfg.critic_lr)}),
            Step("actor_loss", of={"actor": Adam(cfg.actor_lr)}, follow=follow, tau=cfg.tau, every=cfg.policy_delay),
        )

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return what smooths target actions."""
        return {"target": (self.action_dim,)}

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Clipped double Q-learning with target policy smoothing (eqs. 10 and 14)."""
        cfg = self.cfg
        with torch.no_grad():
            smoothing = (cfg.target_noise * noise.target).clamp(-cfg.noise_clip, cfg.noise_clip)
            next_action = (self.target_actor(batch.next_obs).tanh() + smoothing).clamp(-1, 1)
            next_q = self.target_critics(torch.cat((batch.next_obs, next_action), 1)).squeeze(2).amin(0)
            target = batch.reward + batch.discount * next_q
        q = self.critics(torch.cat((batch.obs, batch.action), 1)).squeeze(2)
        return 2.0 * mse_loss(q, target.expand_as(q)), {"q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Deterministic policy gradient through the first critic (eq. 2)."""
        q = self.critics[0](torch.cat((batch.obs, self.actor(batch.obs).tanh()), 1))
        return -q.mean(), {}

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Return actions, with noise where the policy explores."""
        action: Tensor = self.actor(obs).tanh()
        return action if noise is None else (action + self.cfg.explore_noise * noise).clamp(-1, 1)


SPEC = record("td3", TD3Config, TD3)
