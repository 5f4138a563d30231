"""Soft actor-critic (arXiv:1812.05905): twin critics, learned temperature; equations of the paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Learner, Loss, Step, target_of
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.spec import Setup
from roboloop.core.types import Algorithm, EnvSpec, PortablePolicy, State
from roboloop.nets.modules import Ensemble, make_net, tanh_gaussian
from roboloop.nets.observations import Fields


class SAC(Learner):
    """Actor, critics with their targets, and the temperature that holds the actor's entropy."""

    cfg: SACConfig

    def build(self) -> None:
        """Make the modules."""
        cfg, pair = self.cfg, self.obs_dim + self.action_dim
        self.actor = make_net(cfg, self.obs_dim, 2 * self.action_dim)
        self.critics = Ensemble(lambda: make_net(cfg, pair, 1), cfg.num_critics)
        self.target_critics = target_of(self.critics)
        initial = cfg.initial_alpha if cfg.alpha is None else cfg.alpha
        log_alpha = torch.tensor(math.log(initial) if initial else -math.inf)
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=cfg.alpha is None)
        # Haarnoja's default is minus the number of action dimensions
        self.target_entropy = -float(self.action_dim) if cfg.target_entropy is None else cfg.target_entropy

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

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Half the squared soft Bellman error, summed over critics (eqs. 2, 3 and 5).

        ``discount`` is zero where the world ended, so truncation bootstraps and termination does not.
        """
        with torch.no_grad():
            action, log_prob = tanh_gaussian(self.actor(batch.next_obs), noise.next)
            next_q = self.target_critics(torch.cat((batch.next_obs, action), 1)).squeeze(2).amin(0)
            reward = batch.reward if self.cfg.reward_scale == 1.0 else self.cfg.reward_scale * batch.reward
            target = reward + batch.discount * (next_q - self.log_alpha.exp() * log_prob)
        q = self.critics(torch.cat((batch.obs, batch.action), 1)).squeeze(2)
        return 0.5 * (q - target).square().mean(1).sum(), {"q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Eq. 9: alpha log pi - min Q; and eq. 18 in log space: more entropy than wanted lowers the temperature."""
        action, log_prob = tanh_gaussian(self.actor(batch.obs), noise.now)
        q = self.critics(torch.cat((batch.obs, action), 1)).squeeze(2).amin(0)
        alpha, entropy = self.log_alpha.exp().detach(), -log_prob.mean()
        loss = -alpha * entropy - q.mean()
        said = {"actor_loss": loss, "entropy": entropy, "alpha": alpha}
        if self.cfg.alpha is None:
            loss = loss + self.log_alpha * (entropy.detach() - self.target_entropy)
        return loss, said

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Return drawn actions, or tanh(mean)."""
        return tanh_gaussian(self.actor(obs), noise)[0]


def make_sac(cfg: SACConfig, spec: EnvSpec, frame_stack: int, seed: int, device: str = "cpu") -> Algorithm:
    """Return SAC; from pictures it is another class, which shares convolutions."""
    if Fields.of(spec, frame_stack).pictures:
        from roboloop.algos.mtsac.mtsac import MultiTaskSAC

        return MultiTaskSAC(cfg, spec, frame_stack, seed, device)
    return ReplayLearner(SAC, cfg, spec, frame_stack, seed, device)


def make(setup: Setup) -> Algorithm:
    """Return SAC for a run."""
    return make_sac(setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> PortablePolicy:
    """Return the policy of a saved state."""
    if "net" in state["policy"]:  # of pictures, or of a run from before there were learners
        from roboloop.algos.mtsac import mtsac

        return mtsac.load_policy(setup, state)
    return LearnerPolicy.from_state(SAC(setup.config, setup.spec, setup.frame_stack), state)
