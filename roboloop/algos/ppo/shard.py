"""One shard's part of a PPO gradient step: four phases over shared parameters, rollout and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.gradient_step import GradientStep
from roboloop.algos.ppo.losses import (
    advantage_sums,
    log_ratio_of,
    normalised,
    policy_loss,
    policy_loss_gradient,
    value_loss,
    value_loss_gradient,
)
from roboloop.algos.ppo.policy import PPOModel
from roboloop.algos.ppo.returns import Ends, vtrace
from roboloop.nets.actor_critic import Inputs, Window
from roboloop.nets.flat import ALIGN, BYTES, Layout, Views, bytes_of

FACTS = ("old_log_prob", "old_value", "weight", "advantage", "target", "reward", "is_end", "end_value")
"""What is known of each row beside observation and action; one matrix, since gathering is paid per array."""
METRICS = ("policy_loss", "approx_kl", "clip_fraction", "value_loss", "entropy")
ADAM_EPS = 1e-5
"""Of the original implementation: with 1e-8, weights whose gradients are tiny move as far as all others."""


@dataclass(frozen=True)
class PPOShape:
    """All sizes of an update: what every process must know to lay out the shared memory alike."""

    model: PPOModel
    num_envs: int

    @property
    def steps(self) -> int:
        """Rows per environment that are learned from."""
        return self.model.cfg.rollout_steps

    @property
    def seen_steps(self) -> int:
        """Rows per environment that the network sees: V-trace needs the value of the one that follows."""
        return self.steps + self.model.cfg.vtrace

    @property
    def units(self) -> int:
        """Columns, or single rows, that one shard takes of a minibatch."""
        cfg = self.model.cfg
        return self.num_units // (cfg.minibatches * cfg.shards)

    @property
    def num_units(self) -> int:
        """What a pass over the rollout draws from: columns or single rows."""
        return self.num_envs if self.model.cfg.by_column else self.num_envs * self.steps

    @property
    def window(self) -> Window:
        """The rows that one shard's network sees at once."""
        return Window(self.seen_steps, self.units) if self.model.cfg.by_column else Window(1, self.units)

    def to_data(self) -> dict[str, Any]:
        """Return the shape as plain data."""
        return {"model": self.model.to_data(), "num_envs": self.num_envs}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> PPOShape:
        """Return the shape that ``to_data`` described."""
        return cls(PPOModel.from_data(data["model"]), data["num_envs"])

    def make_shard(self, memory: Tensor, index: int) -> PPOShard:
        """Build one shard over the shared memory."""
        return PPOShard(self, memory, index)

    def memory(self) -> Layout:
        """Everything the processes share; rollout leaves are ``[row, ...]`` with row ``t * num_envs + env``."""
        model, cfg = self.model, self.model.cfg
        net, shards = model.net_layout.size, cfg.shards
        rows, seen = self.steps * self.num_envs, self.seen_steps * self.num_envs
        pictures = {f"picture{i}": (-(-seen * c.block_bytes // BYTES),) for i, c in enumerate(model.net.convs)}
        return Layout({
            "policy": (model.layout.size,), "m": (net,), "v": (net,), "grad": (shards, net),
            "vector": (seen, model.fields.vector_dim), "mask": (-(-seen * model.fields.mask_dim // BYTES),), **pictures,
            "starts": (seen,), "memory": (self.num_envs, model.net.memory_size),
            "facts": (rows, len(FACTS)), "action": (rows, model.spec.action_dim),
            "index": (shards, self.units), "one_over_count": (1,), "step": (1,), "lr": (1,),
            "sums": (shards, ALIGN), "squares": (shards, ALIGN), "metrics": (shards, ALIGN),
        })  # fmt: skip

    def views(self, memory: Tensor) -> Views:
        """Return the shared arrays; bytes and indices as what they are."""
        views, seen = self.memory().views(memory), self.seen_steps * self.num_envs
        for i, conv in enumerate(self.model.net.convs):
            views[f"picture{i}"] = bytes_of(views[f"picture{i}"], seen, conv.block_bytes)
        views["mask"] = bytes_of(views["mask"], seen, self.model.fields.mask_dim)
        views["index"] = views["index"].view(torch.int32)
        return views


class PPOShard:
    """Computes its rows' gradients and moves its stretch of the parameters; keeps nothing between steps."""

    PHASES: ClassVar[tuple[str, ...]] = ("forward", "backward", "sum_gradients", "step")

    def __init__(self, shape: PPOShape, memory: Tensor, index: int) -> None:
        model = shape.model
        self._shape, self._model, self._cfg = shape, model, model.cfg
        self._mem = mem = shape.views(memory)
        self._index = mem["index"][index]
        policy = model.layout.views(mem["policy"])
        self._return_norm = policy["return_norm"]
        pixel_norms = [policy[f"pixel_norm{i}"] for i in range(len(model.net.convs))]
        layout = model.net_layout
        self._net = model.net.build(
            layout.views(policy["net"]), layout.views(mem["grad"][index]), pixel_norms, shape.window
        )
        self._step = GradientStep(
            mem, policy["net"], index, Adam(1.0, max_grad_norm=self._cfg.max_grad_norm, eps=ADAM_EPS)
        )
        self._sums, self._metrics = mem["sums"][index], mem["metrics"][index]
        # memory taken anew for each minibatch would cost more than filling it
        sizes = [(shape.window.rows, conv.block_bytes) for conv in model.net.convs]
        self._pictures = tuple(torch.empty(size, dtype=torch.uint8, device=memory.device) for size in sizes)
        # time-major rows of columns: row t * num_envs + column
        self._row_of_step = (torch.arange(shape.window.steps, device=memory.device) * shape.num_envs).unsqueeze(1)
        self._learned = shape.units * (shape.steps if self._cfg.by_column else 1)

    def run(self, phase: str) -> None:
        """Run one of PHASES."""
        getattr(self, phase)()

    def changes(self, phase: str) -> list[Tensor]:
        """Return what a phase changes in place."""
        return self._step.changes if phase == "step" else []

    def catch_up(self, phase: str) -> None:
        """Compute what this phase and later ones need of earlier ones."""
        if phase == "backward":
            self.forward()
        elif phase == "step":
            self._step.sum()

    def forward(self) -> None:
        """See the minibatch's observations; V-trace judges them by what the network says now."""
        mem, fields = self._mem, self._model.fields
        seen = (self._row_of_step + self._index).flatten()
        rows = seen[: self._learned]
        for i, blocks in enumerate(self._pictures):
            torch.index_select(mem[f"picture{i}"], 0, seen, out=blocks)
        inputs = Inputs(mem["vector"].index_select(0, seen), self._pictures)
        memory, starts = mem["memory"], mem["starts"]
        if self._cfg.core != "none":
            memory = memory.index_select(0, self._index)
            starts = starts.index_select(0, seen).view(self._shape.window)
        params, self._value = self._net.forward(inputs, memory, starts)
        mask = mem["mask"].index_select(0, rows).bool() if fields.mask_dim else None
        self._facts = dict(zip(FACTS, mem["facts"].index_select(0, rows).unbind(1), strict=True))
        action = mem["action"].index_select(0, rows)
        self._density = self._model.head.density(params[: self._learned], action, mask)
        self._log_ratio = log_ratio_of(self._density.log_prob, self._facts["old_log_prob"])
        self._weight = self._facts["weight"] * mem["one_over_count"]
        self._judge()
        if self._cfg.normalize_advantage:
            self._sums[:3] = advantage_sums(self._advantage, self._weight)

    def _judge(self) -> None:
        """Say advantages and targets: those of the whole rollout, or V-trace's of the present values."""
        if not self._cfg.vtrace:
            self._advantage, self._target = self._facts["advantage"], self._facts["target"]
            return
        cfg, lead = self._cfg, (self._shape.steps, self._shape.units)
        mean, std = self._return_norm
        value = (self._value * std + mean).view(self._shape.window).cpu().numpy()
        reward, is_end, end_value = (
            self._facts[n].reshape(lead).cpu().numpy() for n in ("reward", "is_end", "end_value")
        )
        ratio = self._log_ratio.exp().view(lead).cpu().numpy()
        found = vtrace(
            reward, value, Ends(is_end, end_value), ratio, cfg.gamma, cfg.gae_lambda, cfg.vtrace_rho, cfg.vtrace_c
        )
        advantage, target = (torch.from_numpy(x).to(mean.device).flatten() for x in found)
        self._advantage, self._target = advantage, (target - mean) / std

    def backward(self) -> None:
        """Follow the losses back into the network."""
        cfg, weight, density = self._cfg, self._weight, self._density
        advantage = self._advantage
        if cfg.normalize_advantage:
            advantage = normalised(advantage, self._mem["sums"][:, :3].sum(0))
        value, old_value = self._value[: self._learned], self._facts["old_value"]
        d_log_prob = policy_loss_gradient(self._log_ratio, advantage, cfg.clip).mul_(weight)
        d_params = self._model.head.gradient(
            density, d_log_prob, weight * -cfg.entropy_coef, weight * cfg.kl_uniform_coef
        )
        d_value = value_loss_gradient(value, old_value, self._target, cfg.value_clip).mul_(weight * cfg.value_coef)
        self._net.backward(d_params, d_value)
        errors = value_loss(value, old_value, self._target, cfg.value_clip)
        rows = (*policy_loss(self._log_ratio, advantage, cfg.clip), errors, density.entropy)
        self._metrics[: len(METRICS)] = torch.stack(rows) @ weight

    def sum_gradients(self) -> None:
        """Sum this stretch of all gradients."""
        self._step.sum()

    def step(self) -> None:
        """Move this stretch of the parameters."""
        self._step.move()
