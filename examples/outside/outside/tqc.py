"""TQC (arXiv:2005.04269): soft actor-critic whose critics say quantiles, of which the greatest are not believed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roboloop.algos.learning import (
    Adam,
    Ensemble,
    Learner,
    LearnerConfig,
    Loss,
    Rows,
    Step,
    mlp,
    record,
    tanh_gaussian,
    target_of,
)  # fmt: skip
from roboloop.algos.limits import above_zero, at_least_one, has_layers, within_one
from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class TQCConfig(LearnerConfig):
    """Truncated quantile critics."""

    name: str = "tqc"
    """Which algorithm this section configures."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    tau: float = 0.005
    """Fraction by which the target critics follow at each update."""
    lr: float = 3e-4
    """Adam step size of actor, critics and temperature."""
    num_critics: int = 5
    """Critics, each with quantiles of its own."""
    quantiles: int = 25
    """Quantiles per critic."""
    dropped: int = 2
    """Greatest quantiles per critic that targets leave out."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        super().check()
        at_least_one(self, "num_critics", "quantiles")
        above_zero(self, "lr")
        within_one(self, "tau")
        has_layers(self, "hidden")
        if not 0 <= self.dropped < self.quantiles:
            raise ConfigError(f"dropped must leave some of {self.quantiles} quantiles, not {self.dropped}")


class TQC(Learner):
    """Algorithm 1 of the paper."""

    cfg: TQCConfig

    def build(self) -> None:
        """Make actor, critics with their targets, and temperature."""
        cfg = self.cfg
        inputs = self.obs_dim + self.action_dim
        self.actor = mlp([self.obs_dim, *cfg.hidden, 2 * self.action_dim])
        self.critics = Ensemble(lambda: mlp([inputs, *cfg.hidden, cfg.quantiles]), cfg.num_critics)
        self.target_critics = target_of(self.critics)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def steps(self) -> tuple[Step, ...]:
        """Return the critics' step, then that of actor and temperature."""
        adam, tau = Adam(self.cfg.lr), self.cfg.tau
        return (
            Step("critic_loss", of={"critics": adam}, follow={"target_critics": "critics"}, tau=tau),
            Step("actor_loss", of={"actor": adam, "log_alpha": adam}),
        )

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return what actions are drawn by."""
        return {"now": (self.action_dim,), "next": (self.action_dim,)}

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Quantile Huber loss to the least quantiles of all target critics (eqs. 9 to 12)."""
        cfg = self.cfg
        with torch.no_grad():
            action, log_prob = tanh_gaussian(self.actor(batch.next_obs), noise.next)
            z = self.target_critics(torch.cat((batch.next_obs, action), 1))  # [E, N, M]
            kept = cfg.num_critics * (cfg.quantiles - cfg.dropped)
            z = z.transpose(0, 1).flatten(1).sort(1).values[:, :kept]
            soft = z - self.log_alpha.exp() * log_prob.unsqueeze(1)
            target = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * soft  # [N, K]
            levels = (torch.arange(cfg.quantiles, device=z.device) + 0.5) / cfg.quantiles
        q = self.critics(torch.cat((batch.obs, batch.action), 1))
        error = target[None, :, None, :] - q[:, :, :, None]  # [E, N, M, K]
        huber = torch.where(error.abs() > 1.0, error.abs() - 0.5, 0.5 * error.square())
        weight = (levels[:, None] - (error.detach() < 0).float()).abs()
        return (weight * huber).mean((1, 2, 3)).sum(), {"q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Entropy and the mean of all quantiles (eq. 14), and the temperature that holds entropy at -dim(A)."""
        action, log_prob = tanh_gaussian(self.actor(batch.obs), noise.now)
        q = self.critics(torch.cat((batch.obs, action), 1)).mean((0, 2))
        entropy = -log_prob.mean()
        loss = (self.log_alpha.exp().detach() * log_prob - q).mean()
        temperature_loss = self.log_alpha * (entropy.detach() + self.action_dim)
        return loss + temperature_loss, {"entropy": entropy, "alpha": self.log_alpha.exp()}

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Return drawn actions, or the best guess."""
        return tanh_gaussian(self.actor(obs), noise)[0]


SPEC = record("tqc", TQCConfig, TQC)
