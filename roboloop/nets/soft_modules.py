"""Soft Modularization (arXiv:2003.13661): a routing network says how much each module feeds each of the next layer.

The version of the authors' code, which differs from the paper: the gate has layers of its own; the state embedding is
activated before the first modules; a routing sees all earlier ones; ReLU follows the weighted sum, not the module; and
the last modules are summed by a routing of their own. Hard routings feed each module from its likeliest one alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.grouped import GroupedLinear
from roboloop.nets.layers import Linear, ReLU, Scratch, weight_shape
from roboloop.nets.mlp import MLP, MLPSpec, Shapes


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

    groups = 1

    @property
    def state(self) -> MLPSpec:
        """State and action to their embedding."""
        return MLPSpec((self.state_dim + self.action_dim, *self.embedding))

    @property
    def gating(self) -> MLPSpec:
        """Both embeddings, multiplied, to what routings are made from."""
        return MLPSpec((self.embedding[-1], *self.gate))

    @property
    def route(self) -> str:
        """What the layers that route are called; their name says how, so that weights alone say what they are."""
        return "pick" if self.hard else "route"

    def links(self, routing: int) -> int:
        """Return the numbers of a routing: between all modules of two layers, or from the last layer to the output."""
        return self.modules**2 if routing < self.layers - 1 else self.modules

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        n, width = self.modules, self.width
        shapes = {
            **prefixed("state", self.state.shapes()), **_linear("task", self.num_tasks, self.embedding[-1]),
            **prefixed("gate", self.gating.shapes()),
        }  # fmt: skip
        for i in range(self.layers):
            if i > 0:
                shapes |= _linear(f"seen{i}", sum(self.links(j) for j in range(i)), self.gate[-1])
            shapes |= _linear(f"{self.route}{i}", self.gate[-1], self.links(i))
        shapes |= _linear("modules0", self.embedding[-1], n * width)
        for i in range(1, self.layers):
            shapes |= {f"modules{i}.weight": (n, width, width), f"modules{i}.bias": (n, width)}
        return shapes | _linear("out", width, self.outputs)

    def build(
        self, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str = "soft", blocks: int = 1
    ) -> SoftModules:
        """Return the network over weights; rows may have any order."""
        return SoftModules(self, weights, grads, rows, scratch, name)

    @classmethod
    def of(cls, weights: Views) -> SoftSpec:
        """Read the sizes of an actor, whose input has no action, back from its weights."""
        state, gate = MLPSpec.of(under("state", weights)), MLPSpec.of(under("gate", weights))
        modules, width = (int(size) for size in weights["modules1.bias"].shape)
        return cls(
            state_dim=state.widths[0],
            num_tasks=weights["task.weight"].numel() // state.widths[-1],
            action_dim=0,
            outputs=weights["out.bias"].numel(),
            modules=modules,
            layers=sum(name.startswith("modules") and name.endswith("bias") for name in weights),
            width=width,
            embedding=state.widths[1:],
            gate=gate.widths[1:],
            hard="pick0.bias" in weights,
        )


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": weight_shape(inputs, outputs), f"{name}.bias": (outputs,)}


class SoftModules:
    """The network for a fixed number of rows; ``grads=None`` freezes the weights.

    Networks that share ``scratch`` and ``name`` share memory: finish one's backward before another's forward.
    """

    def __init__(
        self, spec: SoftSpec, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str
    ) -> None:
        self._spec, self._rows = spec, rows
        self._weights, self._grads, self._scratch, self._name = weights, grads, scratch, name
        last, gate, n, width = spec.embedding[-1], spec.gate[-1], spec.modules, spec.width
        self._state = MLP(spec.state, under("state", weights), self._of(grads, "state"), rows, scratch, f"{name}.state")
        self._gate = MLP(spec.gating, under("gate", weights), self._of(grads, "gate"), rows, scratch, f"{name}.gate")
        self._task = self._linear("task", last)
        self._seen = [self._linear(f"seen{i}", gate) for i in range(1, spec.layers)]
        self._route = [self._linear(f"{spec.route}{i}", spec.links(i)) for i in range(spec.layers)]
        self._first = self._linear("modules0", n * width)
        self._modules = [self._grouped(f"modules{i}") for i in range(1, spec.layers)]
        self._out = self._linear("out", spec.outputs)
        self._x = scratch.take(f"{name}.x", rows, spec.state_dim + spec.action_dim)
        self.routing: list[Tensor] = []
        """Of the latest rows: per layer ``[rows, to, from]``, and ``[rows, 1, from]`` for the output; sums are one."""
        self.chances: list[Tensor] = []
        """The softmax of each routing: itself, where it is not hard."""

    @staticmethod
    def _of(views: Views | None, part: str) -> Views | None:
        return under(part, views) if views else None

    def _linear(self, part: str, outputs: int) -> Linear:
        y = self._scratch.take(f"{self._name}.{part}", self._rows, outputs)
        views = under(part, self._weights), self._of(self._grads, part)
        return Linear(*views, y, self._scratch, f"{part}.dx")

    def _grouped(self, part: str) -> GroupedLinear:
        """Return a layer of modules; its rows lie module by module."""
        y = self._scratch.take(f"{self._name}.{part}", self._spec.modules * self._rows, self._spec.width)
        views = under(part, self._weights), self._of(self._grads, part)
        return GroupedLinear(*views, y, 1, self._scratch, f"{part}.dx")

    def forward(self, x: Tensor) -> Tensor:
        """Return the output rows."""
        spec, n, rows = self._spec, self._spec.modules, self._rows
        begin, end = spec.state_dim, spec.state_dim + spec.num_tasks
        torch.cat((x[:, :begin], x[:, end:]), 1, out=self._x)
        self._f, self._h = self._state.forward(self._x), self._task.forward(x[:, begin:end])
        self._e_active = (self._f * self._h).relu_()
        self._e = self._gate.forward(self._e_active)
        self._route_all()
        self._f_active = self._f.relu()
        first = self._first.forward(self._f_active).view(rows, n, spec.width)
        self._g = [first.transpose(0, 1)]  # what modules give, [from, rows, width]
        self._m: list[Tensor] = []  # what they get, active
        for routing, modules in zip(self.routing[:-1], self._modules, strict=True):
            self._m.append(_mixed(routing, self._g[-1]).relu_())
            self._g.append(modules.forward(self._m[-1].flatten(0, 1)).view(n, rows, spec.width))
        self._m.append(_mixed(self.routing[-1], self._g[-1]).relu_())
        return self._out.forward(self._m[-1][0])

    def _route_all(self) -> None:
        """Say who feeds whom, layer by layer, each seeing all before it."""
        n, rows = self._spec.modules, self._rows
        self._c = [self._e.relu()]  # what a routing is made from, active
        self._seen_out: list[Tensor] = []
        self.routing, self.chances = [], []
        for i, route in enumerate(self._route):
            if i > 0:
                before = torch.cat([routing.flatten(1) for routing in self.routing], 1)
                self._seen_out.append(self._seen[i - 1].forward(before))
                self._c.append((self._seen_out[-1] * self._e).relu_())
            self.chances.append(route.forward(self._c[i]).view(rows, -1, n).softmax(2))
            self.routing.append(_likeliest(self.chances[i]) if self._spec.hard else self.chances[i])

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write the gradient of every weight, return the inputs' where asked; ``dy`` may cover only the first rows."""
        d_f, d_h = self._back_to_embeddings(dy)
        d_z = self._task.backward(d_h, need_dx)
        d_x = self._state.backward(d_f, need_dx)
        if d_x is None or d_z is None:
            return None
        begin = self._spec.state_dim
        return torch.cat((d_x[:, :begin], d_z, d_x[:, begin:]), 1)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the action's columns from ``column`` on, and write none."""
        d_f, _ = self._back_to_embeddings(dy)
        return self._state.backward_inputs_from(d_f, column - self._spec.num_tasks)

    def _back_to_embeddings(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the embeddings of state and task."""
        rows = dy.shape[0]
        d_routing, d_first = self._back_through_modules(dy)
        d_f = ReLU.vjp(must(self._first.backward(d_first, True)), self._f_active[:rows])
        d_e = self._back_through_routing(d_routing)
        d_active = ReLU.vjp(must(self._gate.backward(d_e, True)), self._e_active[:rows])
        return d_f.addcmul_(d_active, self._h[:rows]), d_active * self._f[:rows]

    def _back_through_modules(self, dy: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of all routings, and of what the first modules give."""
        rows, n, width = dy.shape[0], self._spec.modules, self._spec.width
        d_m = must(self._out.backward(dy, True)).unsqueeze(0)
        d_routing: list[Tensor] = []
        for i in reversed(range(self._spec.layers)):
            d_m = ReLU.vjp(d_m, self._m[i][:, :rows])
            g, routing = self._g[i][:, :rows], self.routing[i][:rows]
            d_routing.insert(0, torch.einsum("trw,frw->rtf", d_m, g))
            d_g = torch.einsum("rtf,trw->frw", routing, d_m)
            if i > 0:
                d_m = must(self._modules[i - 1].backward(d_g.reshape(-1, width), True)).view(n, rows, width)
        return d_routing, d_g.transpose(0, 1).reshape(rows, n * width)

    def _back_through_routing(self, d_routing: list[Tensor]) -> Tensor:
        """Return the gradient of what routings are made from."""
        spec, rows = self._spec, d_routing[0].shape[0]
        e = self._e[:rows]
        d_e = torch.zeros_like(e)
        for i in reversed(range(spec.layers)):
            p = self.chances[i][:rows]
            # of softmax over those who feed: p (dp - sum p dp); also where only the likeliest does
            d_raw = p * (d_routing[i] - (p * d_routing[i]).sum(2, keepdim=True))
            d_c = ReLU.vjp(must(self._route[i].backward(d_raw.flatten(1), True)), self._c[i][:rows])
            if i == 0:
                return d_e.add_(d_c)
            d_e.addcmul_(d_c, self._seen_out[i - 1][:rows])
            links = [spec.links(j) for j in range(i)]
            d_before = must(self._seen[i - 1].backward(d_c * e, True))
            for part, link in zip(d_routing, torch.split(d_before, links, 1), strict=False):
                part.add_(link.view_as(part))
        raise AssertionError("there is a first layer")


def evenness(routing: Tensor) -> Tensor:
    """Return for each row of a routing how evenly modules are fed: 1 = by all alike, 0 = each by one alone."""
    entropy: Tensor = torch.special.entr(routing).sum(2).mean(1)
    return entropy / math.log(routing.shape[2])


def _likeliest(chances: Tensor) -> Tensor:
    """Return one for the likeliest to feed each module, the first among equals, and zero for the others."""
    return torch.zeros_like(chances).scatter_(2, chances.argmax(2, keepdim=True), 1.0)


def _mixed(routing: Tensor, g: Tensor) -> Tensor:
    """Return what modules get, ``[to, rows, width]``, of what those before give, ``[from, rows, width]``."""
    return torch.einsum("rtf,frw->trw", routing, g).contiguous()


def must(gradient: Tensor | None) -> Tensor:
    """Return a gradient that was asked for."""
    assert gradient is not None
    return gradient
