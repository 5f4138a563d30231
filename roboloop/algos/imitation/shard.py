"""One shard's part of an imitation update: three phases over shared parameters, windows and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.imitation.policy import ImitationModel, pixel_norms
from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.gradient_step import GradientStep
from roboloop.nets.flat import ALIGN, BYTES, Layout, Views, bytes_of
from roboloop.nets.windows import StateEncoder, WindowInputs

SEED_WORDS = 4


@dataclass(frozen=True)
class ImitationShape:
    """All sizes of an update: what every process must know to lay out the shared memory alike."""

    model: ImitationModel

    @property
    def windows(self) -> int:
        """Windows per shard."""
        return self.model.cfg.batch_size // self.model.cfg.shards

    @property
    def rows(self) -> int:
        """Steps per shard."""
        return self.windows * self.model.cfg.context

    def to_data(self) -> dict[str, Any]:
        """Return the shape as plain data."""
        return self.model.to_data()

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ImitationShape:
        """Return the shape that ``to_data`` described."""
        return cls(ImitationModel.from_data(data))

    def make_shard(self, memory: Tensor, index: int) -> ImitationShard:
        """Build one shard over the shared memory."""
        return ImitationShard(self, memory, index)

    def memory(self) -> Layout:
        """Everything the processes share; steps lie one window after another, as rows of all shards."""
        model, shards = self.model, self.model.cfg.shards
        net, rows = model.net_layout.size, shards * self.rows
        pictures = {f"picture{i}": (-(-rows * c.block_bytes // BYTES),) for i, c in enumerate(model.state.convs)}
        return Layout({
            "policy": (model.layout.size,), "m": (net,), "v": (net,), "grad": (shards, net),
            "vector": (rows, model.fields.vector_dim), "mask": (-(-rows * model.fields.mask_dim // BYTES),), **pictures,
            "action": (rows, model.spec.action_dim), "return_to_go": (rows, 1), "t": (rows,), "valid": (rows,),
            "seed": (shards, SEED_WORDS), "one_over_count": (1,), "step": (1,), "lr": (1,),
            "squares": (shards, ALIGN), "metrics": (shards, ALIGN),
        })  # fmt: skip

    def views(self, memory: Tensor) -> Views:
        """Return the shared arrays; bytes and whole numbers as what they are."""
        views, rows = self.memory().views(memory), self.model.cfg.shards * self.rows
        for i, conv in enumerate(self.model.state.convs):
            views[f"picture{i}"] = bytes_of(views[f"picture{i}"], rows, conv.block_bytes)
        views["mask"] = bytes_of(views["mask"], rows, self.model.fields.mask_dim)
        for name in ("t", "seed"):
            views[name] = views[name].view(torch.int32)
        return views


class ImitationShard:
    """Computes its windows' gradients and moves its stretch of the parameters; keeps nothing between updates."""

    PHASES: ClassVar[tuple[str, ...]] = ("gradients", "sum_gradients", "step")

    def __init__(self, shape: ImitationShape, memory: Tensor, index: int) -> None:
        self._model, self._cfg = shape.model, shape.model.cfg
        self._mem = mem = shape.views(memory)
        self._own_rows = slice(index * shape.rows, (index + 1) * shape.rows)
        self._build_nets(shape, mem, index)
        net = self._model.layout.views(mem["policy"])["net"]
        adam = Adam(1.0, self._cfg.weight_decay, self._cfg.max_grad_norm)
        self._step = GradientStep(mem, net, index, adam)
        self._seed, self._metrics = mem["seed"][index], mem["metrics"][index]

    def _build_nets(self, shape: ImitationShape, mem: Views, index: int) -> None:
        model = self._model
        policy = model.layout.views(mem["policy"])
        weights, grads = model.net_layout.views(policy["net"]), model.net_layout.views(mem["grad"][index])
        self._encoder = StateEncoder(model.state, weights, grads, pixel_norms(policy), shape.rows)
        self._net = model.net.learner(model.of_net(weights), model.of_net(grads), shape.windows)

    def run(self, phase: str) -> None:
        """Run one of PHASES."""
        getattr(self, phase)()

    def changes(self, phase: str) -> list[Tensor]:
        """Return what a phase changes in place."""
        return self._step.changes if phase == "step" else []

    def catch_up(self, phase: str) -> None:
        """Compute what this phase needs of earlier ones."""
        if phase == "step":
            self._step.sum()

    def gradients(self) -> None:
        """Follow the loss of this shard's windows back into the network."""
        mem, rows, head = self._mem, self._own_rows, self._model.head
        action = mem["action"][rows]
        weight = mem["valid"][rows] * mem["one_over_count"]
        mask = mem["mask"][rows].bool() if self._model.fields.mask_dim else None
        rng = np.random.Generator(np.random.SFC64(self._seed.tolist()))
        outputs = self._net.forward(self._windows(action), rng)
        fit = head.fit(outputs, action, weight, mask)
        d_features = self._net.backward(fit.d_outputs)
        if d_features is not None:
            self._encoder.backward(d_features)
        self._metrics[: len(head.metrics)] = torch.stack([fit.metrics[name] for name in head.metrics])

    def _windows(self, action: Tensor) -> WindowInputs:
        mem, rows = self._mem, self._own_rows
        pictures = [mem[f"picture{i}"][rows] for i in range(len(self._model.state.convs))]
        state = self._encoder.forward(mem["vector"][rows], pictures)
        valid = mem["valid"][rows].view(-1, self._cfg.context)
        return WindowInputs(state, self._model.head.encode(action), mem["return_to_go"][rows], mem["t"][rows], valid)

    def sum_gradients(self) -> None:
        """Sum this stretch of all gradients."""
        self._step.sum()

    def step(self) -> None:
        """Move this stretch of the parameters."""
        self._step.move()
