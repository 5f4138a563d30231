"""A learner that acts by an actor-critic and learns from rollouts: a subclass says its steps and losses."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.learner.config import RolloutConfig
from roboloop.algos.learner.inputs import Input, ObsInputs, Rows
from roboloop.algos.learner.learner import Decided, Learner, Seen
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale
from roboloop.core.types import Array, PortablePolicy
from roboloop.nets.actions import ActionHead
from roboloop.nets.actor_critic import ActorCritic, conv_specs
from roboloop.nets.flat import Views

FACTS = ("old_log_prob", "old_value", "is_learned", "advantage", "target", "reward", "is_end", "end_value")
"""What is known of each row beside observation and action; one matrix, since gathering is paid per array."""
COUNTS = ("weight", "advantage_mean", "advantage_std")
"""What is known of each minibatch."""


class Minibatch(NamedTuple):
    """A shard's rows ``[N]``: what the present networks say of them, and what is known of them.

    Rows of windows are time-major, ``[T, B]`` flattened. Values and targets are in units of the value network.
    """

    log_prob: Tensor
    entropy: Tensor
    uniform_kl: Tensor  # divergence of choices from uniform ones
    value: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor  # generalised, normalised where the config says so
    target: Tensor
    weight: Tensor  # sums to one over a minibatch, times the number of shards; zero where a row does not count
    is_learned: Tensor  # 1 where a row counts
    reward: Tensor
    is_end: Tensor
    end_value: Tensor
    seen_value: Tensor  # [T, B] of all rows that the network sees


class OnPolicy(Learner):
    """Base of algorithms that learn from rollouts; its losses call ``look``."""

    acting = ("net",)
    takes: ClassVar[frozenset[str]] = frozenset({"pictures", "choices"})
    is_bounded: ClassVar[bool] = False
    cfg: RolloutConfig
    return_norm: Tensor
    units: Tensor

    def build(self) -> None:
        """Make the network."""
        cfg, spec, scale = self.cfg, self.spec, ActionScale(self.spec)
        self.head = ActionHead(spec.action_choices or (0,) * spec.action_dim)
        self.reads = conv_specs(cfg, self.fields)
        self.net = ActorCritic(cfg, self.fields, self.reads, self.head)
        self.memory_size = self.net.memory_size
        self.register_buffer("return_norm", torch.tensor([0.0, 1.0]))
        self.register_buffer("units", torch.from_numpy(np.stack((scale.half, scale.center))), persistent=False)
        self._units_differ = not scale.is_identity

    def inputs(self, num_envs: int) -> dict[str, Input]:
        """Return what losses are given: a rollout ``[T, B, ...]``, and of each minibatch which part of it."""
        cfg = self.cfg
        steps, seen = cfg.rollout_steps, (cfg.seen_steps, num_envs)
        units = (num_envs if cfg.by_column else num_envs * steps) // (cfg.minibatches * cfg.shards)
        obs = ObsInputs(self.fields, self.reads).arrays(1)
        rollout = {
            **{f"obs{end}": Input((*seen, *each.shape[1:]), each.dtype) for end, each in obs.items()},
            "action": Input((steps, num_envs, self.action_dim)), "facts": Input((steps, num_envs, len(FACTS))),
            "starts": Input(seen), "memory": Input((num_envs, self.memory_size)),
        }  # fmt: skip
        common = {name: each._replace(common=True) for name, each in rollout.items()}
        return {**common, "index": Input((units,), "int32"), "counts": Input((len(COUNTS),))}

    def look(self, batch: Rows) -> Minibatch:
        """Return what the networks say of the rows that ``index`` names."""
        cfg, index = self.cfg, batch.index
        seen = _parts(batch.obs)
        obs = {name: self._gather(array, index) for name, array in seen.items()}
        pictures = [obs[f"picture{i}"] for i in range(len(self.reads))]
        memory, starts = batch.memory, batch.starts
        if cfg.core != "none":
            memory, starts = memory.index_select(0, index), starts.index_select(1, index)
        said = self.net(obs["vector"], pictures, memory, starts)
        facts = self._gather(batch.facts, index)
        learned = facts.shape[0] * facts.shape[1]
        action = self._gather(batch.action, index).flatten(0, 1)
        mask = obs["mask"][: len(facts)].flatten(0, 1) if "mask" in obs else None
        density = self.head.density(said.params[:learned], action, mask)
        known = dict(zip(FACTS, facts.flatten(0, 1).unbind(1), strict=True))
        weight, mean, std = batch.counts
        if cfg.normalize_advantage:
            known["advantage"] = (known["advantage"] - mean) / std
        return Minibatch(
            *density, value=said.value[:learned], weight=known["is_learned"] * weight,
            seen_value=said.value.view(obs["vector"].shape[:2]), **known,
        )  # fmt: skip

    def _gather(self, rollout: Tensor, index: Tensor) -> Tensor:
        """Return whole rollouts of some environments ``[T, units, ...]``, or single steps ``[1, units, ...]``."""
        if self.cfg.by_column:
            return rollout.index_select(1, index)
        return rollout.flatten(0, 1).index_select(0, index).unsqueeze(0)

    def decide(self, obs: Seen, memory: Tensor, noise: Tensor | None) -> Decided:
        """Return drawn or likeliest actions, the memory after them, and what they are worth."""
        seen = _parts(obs)
        vector, mask = seen["vector"].unsqueeze(0), seen.get("mask")
        pictures = [seen[f"picture{i}"].unsqueeze(0) for i in range(len(self.reads))]
        said = self.net(vector, pictures, memory, None)  # whoever acts has cleared the memory
        params = said.params
        unit = self.head.mode(params, mask) if noise is None else self.head.sample(params, noise, mask)
        log_prob = self.head.log_prob(params, self._as_stored(unit), mask)
        mean, std = self.return_norm
        return Decided(unit, said.memory if self.memory_size else None, log_prob, mean + std * said.value)

    def _as_stored(self, unit: Tensor) -> Tensor:
        """Return actions rounded to the environment's units and back: what learning will see."""
        half, center = self.units.to(unit.device)
        return (unit * half + center - center) / half if self._units_differ else unit

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return the noise by which so many actions explore."""
        return self.head.noise(rng, rows)


def with_std(policy: PortablePolicy, std: float) -> LearnerPolicy | None:
    """Return a snapshot whose continuous actions have this deviation in all states; None where there are none."""
    learner = policy.learner if isinstance(policy, LearnerPolicy) else None
    if not isinstance(policy, LearnerPolicy) or not isinstance(learner, OnPolicy) or not learner.net.num_continuous:
        return None
    steady = policy.snapshot()
    assert isinstance(steady.learner, OnPolicy)
    steady.learner.net.set_std(std)
    return steady


def _parts(obs: Seen) -> Views:
    """Return the parts of observations by name, however they came."""
    if isinstance(obs, Tensor):
        return {"vector": obs}
    return dict(vars(obs))
