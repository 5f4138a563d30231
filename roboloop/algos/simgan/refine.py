"""Refinement: PPO that begins with another policy's actor, charged for leaving it and for what no target would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from roboloop.algos.frozen import actor_layers
from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.learner.on_policy import OnPolicy
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.rollout_learner import RolloutLearner
from roboloop.algos.ppo.losses import MAX_LOG_RATIO
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.algos.simgan.dynamics_config import DynamicsConfig
from roboloop.algos.simgan.refine_config import RefineConfig
from roboloop.algos.simgan.transition_windows import RobotColumns, TransitionWitness, WindowShape
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, Metrics, Rollout, State
from roboloop.envs.frozen import FrozenPolicy, Layers

_LOG_2PI = math.log(2.0 * math.pi)


class TargetScore(NamedTuple):
    """How much steps look like the target's, ``[T, B]``."""

    logit: Array
    is_valid: Array  # where there is a whole window


class DiscriminatorGuard:
    """A discriminator that has learned, and what it sees of a robot's own environment; it never changes again."""

    def __init__(self, discriminator: Discriminator, witness: TransitionWitness) -> None:
        self._discriminator, self._witness = discriminator, witness

    @property
    def max_lag(self) -> int:
        """Steps that its windows reach back."""
        return self._witness.shape.max_lag

    def look(self, rollout: Rollout) -> TargetScore:
        """Return what it thinks of a rollout."""
        seen = self._witness.look(rollout)
        logit = np.zeros(rollout.num_steps, np.float32)
        some = Steps(*(column[seen.is_valid] for column in seen.steps))
        if len(some.ended):
            logit[seen.is_valid] = self._discriminator.logits(some)[0].numpy()
        return TargetScore(logit.reshape(rollout.reward.shape), seen.is_valid.reshape(rollout.reward.shape))

    def state(self) -> State:
        """Return the discriminator and the rows that windows look back on."""
        return {"discriminator": self._discriminator.state(), "witness": self._witness.state()}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._discriminator.load(state["discriminator"])
        self._witness.load(state["witness"])


class Refine:
    """The Algorithm: ``update`` charges the steps of a rollout, then lets PPO learn from it.

    r' = r - kl_coef (log pi - log pi_start) - disc_coef max(0, floor - logit)
    """

    def __init__(
        self, cfg: RefineConfig, rl: RolloutLearner, start: FrozenPolicy, guard: DiscriminatorGuard | None
    ) -> None:
        self.cfg, self._rl, self._start, self._guard = cfg, rl, start, guard
        self.num_updates = 0
        self.progress = 0.0

    @property
    def policy(self) -> LearnerPolicy:
        """The live policy: each update changes it."""
        return self._rl.policy

    def update(self, rollout: Rollout) -> Metrics:
        """Learn from a rollout, unless the policy is too far from where it began: then it stays what it is."""
        away = rollout.log_prob - self._log_prob_of_start(rollout)
        charge, told = self.cfg.kl_coef * away, {"kl_start": divergence(away)}
        if self._guard is not None:
            doubt = self._guard.look(rollout)
            short = np.where(doubt.is_valid, np.maximum(0.0, self.cfg.floor - doubt.logit), 0.0)
            charge = charge + self.cfg.disc_coef * short
            told |= _guard_metrics(doubt, short)
        self._rl.progress = self.progress
        is_far = self.cfg.kl_limit is not None and told["kl_start"] > self.cfg.kl_limit
        told["skipped"] = float(is_far)
        if is_far:
            return told
        charged = (rollout.reward - charge).astype(np.float32)
        learned = self._rl.update(rollout._replace(reward=charged))
        self.num_updates = self._rl.num_updates
        return {**learned, **told, "charge": float(charge.mean())}

    def _log_prob_of_start(self, rollout: Rollout) -> Array:
        """Return log pi_start ``[T, B]`` of what was done, in units in which actions reach from -1 to 1."""
        mean, std = self._start.mean_and_std(rollout.obs[:-1].reshape(rollout.num_steps, -1))
        unit = self._start.to_unit(rollout.action.reshape(mean.shape))
        log_prob: Array = -(0.5 * ((unit - mean) / std) ** 2 + np.log(std) + 0.5 * _LOG_2PI).sum(1)
        return log_prob.reshape(rollout.reward.shape)

    def state(self) -> State:
        """Return everything the next update depends on, also what was taken from other runs; they may go on."""
        guard = {} if self._guard is None else {"guard": self._guard.state()}
        return {**self._rl.state(), "start": _numbers(self._start.layers), **guard}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._rl.load(state)
        self._start = FrozenPolicy(_with_numbers(self._start.layers, state["start"]))
        if self._guard is not None:
            self._guard.load(state["guard"])
        self.num_updates = self._rl.num_updates

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._rl.messages()

    def close(self) -> None:
        """Stop PPO's helper processes."""
        self._rl.close()


def divergence(log_ratio: Array) -> float:
    """Return KL(pi || pi_start) from log pi - log pi_start of pi's actions, by the estimator that is never negative."""
    return float((np.exp(np.clip(-log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)) - 1.0 + log_ratio).mean())


def _guard_metrics(doubt: TargetScore, short: Array) -> dict[str, float]:
    """Return mean probability of being the target's, and the share of steps that are charged, of whole windows."""
    if not doubt.is_valid.any():
        return {}
    logit = doubt.logit[doubt.is_valid].astype(np.float64)
    score = np.where(logit >= 0, 1.0, np.exp(-np.abs(logit))) / (1.0 + np.exp(-np.abs(logit)))
    return {"d_score": float(score.mean()), "guard_fraction": float((short[doubt.is_valid] > 0).mean())}


def _numbers(layers: Layers) -> State:
    return {
        "weights": list(layers.weights), "biases": list(layers.biases), "log_std": layers.log_std,
        "obs_norm": layers.obs_norm,
    }  # fmt: skip


def _with_numbers(layers: Layers, state: State) -> Layers:
    weights, biases = (tuple(np.array(x) for x in state[name]) for name in ("weights", "biases"))
    return replace(layers, weights=weights, biases=biases, log_std=state["log_std"], obs_norm=state["obs_norm"])


def make_refine(
    cfg: RefineConfig,
    spec: EnvSpec,
    start: FrozenPolicy,
    guard: DiscriminatorGuard | None,
    num_envs: int,
    seed: int,
    device: str = "cpu",
) -> Refine:
    """Return the algorithm of a config; ``start`` has its deviation already."""
    check_start(cfg, spec, start.layers)
    rl = make_ppo(cfg.ppo, spec, 1, num_envs, seed, device)
    begin_with(rl, start.layers, cfg.start_std)
    return Refine(cfg, rl, start, guard)


@torch.no_grad()
def begin_with(rl: RolloutLearner, start: Layers, std: float) -> None:
    """Begin with the layers and means of another actor; its scale of observations then stays."""
    learner = rl.policy.learner
    assert isinstance(learner, OnPolicy)
    for layer, weight, bias in zip(actor_layers(learner), start.weights, start.biases, strict=True):
        layer.weight.zero_()
        layer.weight[: len(bias)] = torch.from_numpy(weight.T)
        layer.bias[: len(bias)] = torch.from_numpy(bias)
    learner.net.set_std(std)
    if start.obs_norm.size:
        rl.keep_obs_norm(start.obs_norm)


def check_start(cfg: RefineConfig, spec: EnvSpec, start: Layers) -> None:
    """Refuse an actor that does not fit the environment or the networks that the config asks for."""
    if spec.obs_shape != (start.obs_dim,) or not spec.is_continuous or spec.action_dim != start.action_dim:
        raise ConfigError(f"the start takes {start.obs_dim} numbers and gives {start.action_dim}, the environment has "
                          f"observations {spec.obs_shape} and {spec.action_dim} actions")  # fmt: skip
    bounds = (np.array(bound, np.float32) for bound in (spec.action_low, spec.action_high))
    if not all(map(np.array_equal, (start.action_low, start.action_high), bounds)):
        raise ConfigError("the actions of the start have other bounds than the environment's")
    ppo = cfg.ppo
    wanted: Mapping[str, tuple[object, object]] = {
        "net": (ppo.net, "mlp"),
        "hidden": (list(ppo.hidden), list(start.hidden)),
        "activation": (ppo.activation or "tanh", start.activation),
        "normalize_obs": (ppo.normalize_obs, bool(start.obs_norm.size)),
    }
    for name, (asked, has) in wanted.items():
        if asked != has:
            raise ConfigError(f"config key 'algo.ppo.{name}' must be {has}, as the start's, not {asked}")


def make_guard(cfg: DynamicsConfig, spec: EnvSpec, state: State, num_envs: int, seed: int) -> DiscriminatorGuard:
    """Return the guard of a dynamics run's config and saved algorithm, for a robot's own environment of ``spec``."""
    saved = state["witness"]
    shape = WindowShape.of(cfg, int(saved["state_dim"]), int(saved["action_dim"]))
    if len(spec.obs_shape) != 1 or spec.obs_shape[0] < shape.state_dim or spec.action_dim != shape.action_dim:
        raise ConfigError(f"the guard knows states of {shape.state_dim} numbers and {shape.action_dim} actions, the "
                          f"environment has observations {spec.obs_shape} and {spec.action_dim} actions")  # fmt: skip
    lives = EpisodeCounts(np.ones(1), np.ones(1))  # bonuses are not asked for
    discriminator = Discriminator(cfg.discriminator, shape.spec, lives, cfg.ppo.gamma, seed)
    discriminator.load(state["discriminator"])
    return DiscriminatorGuard(discriminator, TransitionWitness(shape, RobotColumns(shape.state_dim, spec), num_envs))
