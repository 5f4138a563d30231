"""Proximal policy optimisation (arXiv:1707.06347), also over rollouts of older policies: V-trace (arXiv:1802.01561)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Loss, Step
from roboloop.algos.learner.on_policy import Minibatch, OnPolicy
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.rollout_learner import RolloutLearner
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.losses import log_ratio_of, normalised, policy_loss, value_loss, vtrace
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec, State

ADAM_EPS = 1e-5
"""Of the original implementation: with 1e-8, weights whose gradients are tiny move as far as all others."""


class PPO(OnPolicy):
    """Clipped surrogate, value loss, and what explores."""

    cfg: PPOConfig

    def build(self) -> None:
        """Make the network."""
        if self.cfg.kl_uniform_coef and self.spec.is_continuous:
            raise ConfigError("kl_uniform_coef explores choices, and this environment has none: use entropy_coef")
        super().build()

    def steps(self) -> tuple[Step, ...]:
        """Return the one gradient step of algorithm 1."""
        limit = self.cfg.max_grad_norm or math.inf  # its length is said even where nothing limits it
        return (Step("loss", of={"net": Adam(self.cfg.lr, max_grad_norm=limit, eps=ADAM_EPS)}),)

    def loss(self, batch: Rows, noise: Rows) -> Loss:
        """Eq. 9, with the divergence from uniform choices as a second way to explore."""
        cfg, rows = self.cfg, self.look(batch)
        log_ratio = log_ratio_of(rows.log_prob, rows.old_log_prob)
        advantage, target = self._corrected(rows, log_ratio.detach()) if cfg.vtrace else (rows.advantage, rows.target)
        surrogate = policy_loss(log_ratio, advantage, cfg.clip)
        error = value_loss(rows.value, rows.old_value, target, cfg.value_clip)
        loss = surrogate.loss + cfg.value_coef * error
        if cfg.entropy_coef:
            loss = loss - cfg.entropy_coef * rows.entropy
        if cfg.kl_uniform_coef:
            loss = loss + cfg.kl_uniform_coef * rows.uniform_kl
        said = (surrogate.loss, surrogate.approx_kl, surrogate.is_clipped, error, rows.entropy)
        names = ("policy_loss", "approx_kl", "clip_fraction", "value_loss", "entropy")
        means = torch.stack([each.detach() for each in said]) @ rows.weight
        return torch.dot(loss, rows.weight), dict(zip(names, means, strict=True))

    @torch.no_grad()
    def _corrected(self, rows: Minibatch, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return V-trace's advantages and targets by the present values; mean and deviation are those of the shard."""
        cfg, (mean, std) = self.cfg, self.return_norm
        reward, is_end, end_value, ratio = (
            x.view(cfg.rollout_steps, -1) for x in (rows.reward, rows.is_end, rows.end_value, log_ratio.exp())
        )
        found = vtrace(
            reward, mean + std * rows.seen_value, is_end, end_value, ratio,
            cfg.gamma, cfg.gae_lambda, cfg.vtrace_rho, cfg.vtrace_c,
        )  # fmt: skip
        advantage, target = found.advantage.flatten(), (found.value.flatten() - mean) / std
        return normalised(advantage, rows.is_learned) if cfg.normalize_advantage else advantage, target


def make_ppo(
    cfg: PPOConfig, spec: EnvSpec, frame_stack: int, num_envs: int, seed: int, device: str = "cpu"
) -> RolloutLearner:
    """Return PPO, also as a part of another algorithm."""
    return RolloutLearner(PPO, cfg, spec, frame_stack, num_envs, seed, device)


def make(setup: Setup) -> RolloutLearner:
    """Return PPO for a run."""
    return make_ppo(setup.config, setup.spec, setup.frame_stack, setup.num_envs, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state, also of an algorithm of which PPO is a part."""
    cfg = setup.config if isinstance(setup.config, PPOConfig) else setup.config.ppo
    return LearnerPolicy.from_state(PPO(cfg, setup.spec, setup.frame_stack), state)
