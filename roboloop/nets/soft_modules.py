"""Soft Modularization (arXiv:2003.13661): a routing network says how much each module feeds each of the next layer.

The version of the authors' code, which differs from the paper: the gate has layers of its own; the state embedding is
activated before the first modules; a routing sees all earlier ones; ReLU follows the weighted sum, not the module; and
the last modules are summed by a routing of their own. Hard routings feed each module from its likeliest one alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from roboloop.nets.modules import mlp
from roboloop.nets.task_heads import GroupedLinear


@dataclass(frozen=True)
class SoftSpec:
    """Sizes; input columns are ``[state | task | action]``, the task as one-hot or any shift and scale of it."""

    state_dim: int
    num_tasks: int
    action_dim: int
    outputs: int
    modules: int
    """Modules per layer."""
    layers: int
    """Layers of modules, at least two."""
    width: int
    """Units of a module."""
    embedding: tuple[int, ...]
    """Widths of the layers that embed state and action; the task's embedding is as wide as the last."""
    gate: tuple[int, ...]
    """Widths of the layers between the embeddings and the routings."""
    hard: bool = False
    """Whether each module is fed by its likeliest one alone; gradients are those of the mixture (straight-through)."""

    def links(self, routing: int) -> int:
        """Return the numbers of a routing: between all modules of two layers, or from the last layer to the output."""
        return self.modules**2 if routing < self.layers - 1 else self.modules


class Routed(NamedTuple):
    """What a network computed, and who fed whom."""

    outputs: Tensor
    routing: list[Tensor]
    """Per layer ``[rows, to, from]``, and ``[rows, 1, from]`` for the output; sums are one."""
    chances: list[Tensor]
    """The softmax of each routing: itself, where it is not hard."""


class SoftModules(nn.Module):
    """The network; rows may have any order."""

    def __init__(self, spec: SoftSpec) -> None:
        super().__init__()
        self.spec = spec
        last, gate, n = spec.embedding[-1], spec.gate[-1], spec.modules
        self.state = mlp((spec.state_dim + spec.action_dim, *spec.embedding))
        self.task = nn.Linear(spec.num_tasks, last)
        self.gate = mlp((last, *spec.gate))
        links = [spec.links(i) for i in range(spec.layers)]
        self.seen = nn.ModuleList(nn.Linear(sum(links[:i]), gate) for i in range(1, spec.layers))
        self.route = nn.ModuleList(nn.Linear(gate, each) for each in links)
        self.first = nn.Linear(last, n * spec.width)
        self.later = nn.ModuleList(GroupedLinear(n, spec.width, spec.width) for _ in range(1, spec.layers))
        self.out = nn.Linear(spec.width, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output rows."""
        return self.routed(x).outputs

    def routed(self, x: Tensor) -> Routed:
        """Return the output rows and how modules were mixed for each."""
        spec = self.spec
        state, task, action = torch.split(x, [spec.state_dim, spec.num_tasks, spec.action_dim], 1)
        f: Tensor = self.state(torch.cat((state, action), 1) if spec.action_dim else state)
        routing, chances = self._routings(self.gate((f * self.task(task)).relu()))
        # what modules give, [from, rows, width]
        given: Tensor = self.first(f.relu()).unflatten(1, (spec.modules, spec.width)).transpose(0, 1)
        for mixture, layer in zip(routing, self.later, strict=False):
            assert isinstance(layer, GroupedLinear)
            given = layer.by_group(mixed(mixture, given).relu())
        return Routed(self.out(mixed(routing[-1], given)[0].relu()), routing, chances)

    def _routings(self, e: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return who feeds whom, layer by layer, each seeing all before it, and the softmax of each."""
        routing: list[Tensor] = []
        chances: list[Tensor] = []
        for i, route in enumerate(self.route):
            before = self.seen[i - 1](torch.cat([r.flatten(1) for r in routing], 1)) * e if i else e
            chances.append(route(before.relu()).unflatten(1, (-1, self.spec.modules)).softmax(2))
            routing.append(likeliest(chances[i]) if self.spec.hard else chances[i])
        return routing, chances


def likeliest(chances: Tensor) -> Tensor:
    """Return one for the likeliest to feed each module, the first among equals, with the gradient of the chances."""
    hard = chances.argmax(2, keepdim=True) == torch.arange(chances.shape[2], device=chances.device)
    return hard.to(chances.dtype) - chances.detach() + chances


def mixed(routing: Tensor, given: Tensor) -> Tensor:
    """Return what modules get, ``[to, rows, width]``, of what those before give, ``[from, rows, width]``."""
    return torch.einsum("rtf,frw->trw", routing, given)


def evenness(routing: Tensor) -> Tensor:
    """Return for each row of a routing how evenly modules are fed: 1 = by all alike, 0 = each by one alone."""
    entropy: Tensor = torch.special.entr(routing).sum(2).mean(1)
    return entropy / math.log(routing.shape[2])
