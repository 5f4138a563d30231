"""One shard's part of a SAC update: four phases over shared parameters, batch and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roboloop.algos.adam import FlatAdam
from roboloop.algos.config import SACConfig
from roboloop.algos.losses import (
    TensorMetrics,
    actor_loss,
    actor_loss_gradient,
    critic_loss,
    critic_loss_gradient,
    td_target,
)
from roboloop.algos.shards import stretch, sum_in_order
from roboloop.core.config import override, to_dict
from roboloop.nets.flat import ALIGN, Layout, Views
from roboloop.nets.heads import sample, sample_gradient
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLP, Ensemble, MLPSpec

METRICS = ("critic_loss", "q_mean", "actor_loss", "entropy")


@dataclass(frozen=True)
class SACShape:
    """All sizes of an update: what every process must know to lay out the shared memory alike."""

    cfg: SACConfig
    obs_dim: int
    action_dim: int

    @property
    def rows(self) -> int:
        """Transitions per shard."""
        return self.cfg.batch_size // self.cfg.shards

    @property
    def actor_spec(self) -> MLPSpec:
        """Observation to mean and log std."""
        return MLPSpec((self.obs_dim, *self.cfg.hidden, 2 * self.action_dim), self.cfg.layer_norm)

    @property
    def critic_spec(self) -> MLPSpec:
        """Observation and action to value."""
        return MLPSpec((self.obs_dim + self.action_dim, *self.cfg.hidden, 1), self.cfg.layer_norm)

    @property
    def actor(self) -> Layout:
        """The actor's parameters."""
        return Layout(self.actor_spec.shapes())

    @property
    def critics(self) -> Layout:
        """All critics' parameters."""
        return Layout(Ensemble.shapes(self.critic_spec, self.cfg.num_critics))

    def to_data(self) -> dict[str, Any]:
        """Return the shape as plain data."""
        return {"cfg": to_dict(self.cfg), "obs_dim": self.obs_dim, "action_dim": self.action_dim}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> SACShape:
        """Return the shape that ``to_data`` described."""
        return cls(override(SACConfig(), data["cfg"]), data["obs_dim"], data["action_dim"])

    def make_shard(self, memory: Tensor, index: int) -> SACShard:
        """Build one shard over the shared memory."""
        return SACShard(self, memory, index)

    def memory(self) -> Layout:
        """Everything the processes share; batch leaves are ``[shard, row, ...]``."""
        shards, rows, actor, critics = self.cfg.shards, self.rows, self.actor.size, self.critics.size
        return Layout({
            "actor": (actor,), "actor_m": (actor,), "actor_v": (actor,), "actor_grad": (shards, actor),
            "critics": (critics,), "critics_m": (critics,), "critics_v": (critics,), "critics_grad": (shards, critics),
            "targets": (critics,),
            "obs_pair": (shards, 2, rows, self.obs_dim), "noise_pair": (shards, 2, rows, self.action_dim),
            "action": (shards, rows, self.action_dim), "reward": (shards, rows), "discount": (shards, rows),
            "alpha": (1,), "step": (1,), "metrics": (shards, ALIGN),
        })  # fmt: skip


class SACShard:
    """Computes its rows' gradients and moves its stretch of the parameters; keeps nothing between updates."""

    PHASES = ("critic_gradients", "critic_step", "actor_gradients", "actor_step")

    def __init__(self, shape: SACShape, memory: Tensor, index: int) -> None:
        self._shape, self._cfg, self._rows = shape, shape.cfg, shape.rows
        mem = shape.memory().views(memory)
        self._build_nets(mem, index)
        self._build_steps(mem, index)
        device, width = memory.device, shape.obs_dim + shape.action_dim
        self._obs_pair = mem["obs_pair"][index].unbind(0)
        self._both_obs, self._both_noise = mem["obs_pair"][index].flatten(0, 1), mem["noise_pair"][index].flatten(0, 1)
        self._action, self._reward = mem["action"][index], mem["reward"][index]
        self._discount, self._alpha, self._metrics = mem["discount"][index], mem["alpha"], mem["metrics"][index]
        # critic inputs [obs | action]: of the batch, of the successor with a fresh action, of the state with one
        self._x, self._x_next, self._x_fresh = (torch.empty(self._rows, width, device=device) for _ in range(3))

    def _build_nets(self, mem: Views, index: int) -> None:
        shape, rows, size = self._shape, self._rows, self._cfg.num_critics
        scratch = Scratch(mem["actor"].device)
        critics = shape.critics.views(mem["critics"])
        critics_grad = shape.critics.views(mem["critics_grad"][index])
        actor_grad = shape.actor.views(mem["actor_grad"][index])
        self._actor = MLP(shape.actor_spec, shape.actor.views(mem["actor"]), actor_grad, 2 * rows, scratch, "actor")
        self._critics = Ensemble(shape.critic_spec, size, critics, critics_grad, rows, scratch)
        self._frozen_critics = Ensemble(shape.critic_spec, size, critics, None, rows, scratch)
        targets = shape.critics.views(mem["targets"])
        self._targets = Ensemble(shape.critic_spec, size, targets, None, rows, scratch)

    def _build_steps(self, mem: Views, index: int) -> None:
        cfg = self._cfg
        critics, actor = (stretch(mem[net].numel(), cfg.shards, index) for net in ("critics", "actor"))
        self._critic_adam = flat_adam(mem, "critics", critics, cfg.critic_lr)
        self._actor_adam = flat_adam(mem, "actor", actor, cfg.actor_lr)
        self._critic_grads = list(mem["critics_grad"][:, critics])
        self._actor_grads = list(mem["actor_grad"][:, actor])
        self._critic_part, self._target_part = mem["critics"][critics], mem["targets"][critics]

    def run(self, phase: str) -> None:
        """Run one of PHASES."""
        getattr(self, phase)()

    def critic_gradients(self) -> None:
        """Draw fresh actions in both states, then the gradient of the Bellman error."""
        rows, alpha = self._rows, float(self._alpha)
        obs, next_obs = self._obs_pair
        # one pass for both states: the actor does not change before its own step
        self._drawn = drawn = sample(self._actor.forward(self._both_obs), self._both_noise)
        torch.cat((next_obs, drawn.action[rows:]), 1, out=self._x_next)
        torch.cat((obs, self._action), 1, out=self._x)
        torch.cat((obs, drawn.action[:rows]), 1, out=self._x_fresh)
        next_q = self._targets.forward(self._x_next)
        target = td_target(self._reward, self._discount, next_q, drawn.log_prob[rows:], alpha)
        q = self._critics.forward(self._x)
        self._critics.backward(critic_loss_gradient(q, target, self._cfg.batch_size))
        self._report(critic_loss(q, target, self._cfg.batch_size)[1])

    def critic_step(self) -> None:
        """Sum the shards' gradients in order and move this stretch of critics and targets."""
        self._critic_adam.update(sum_in_order(self._critic_grads))
        self._target_part.lerp_(self._critic_part, self._cfg.tau)

    def actor_gradients(self) -> None:
        """Follow the moved critics' gradient into the actions drawn before, and on into the actor."""
        alpha, batch_size = float(self._alpha), self._cfg.batch_size
        drawn = self._drawn.first(self._rows)
        q = self._frozen_critics.forward(self._x_fresh)
        d_q, d_log_prob = actor_loss_gradient(q, alpha, batch_size)
        d_action = self._frozen_critics.backward_inputs_from(d_q, self._shape.obs_dim)
        self._actor.backward(sample_gradient(drawn, d_action, d_log_prob))
        self._report(actor_loss(q, drawn.log_prob, alpha, batch_size)[1])

    def actor_step(self) -> None:
        """Sum the shards' gradients in order and move this stretch of the actor."""
        self._actor_adam.update(sum_in_order(self._actor_grads))

    def _report(self, metrics: TensorMetrics) -> None:
        for name, value in metrics.items():
            self._metrics[METRICS.index(name)] = value


def flat_adam(mem: Views, net: str, part: slice, lr: float) -> FlatAdam:
    """Return the optimiser of one stretch of a network."""
    return FlatAdam(mem[net][part], mem[f"{net}_m"][part], mem[f"{net}_v"][part], mem["step"][0], lr)
