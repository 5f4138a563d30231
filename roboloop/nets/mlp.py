"""Multi-layer perceptrons and ensembles of them, as lists of layers over shared parameter views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.grouped import GroupedLinear
from roboloop.nets.layers import ACTIVATIONS, Layer, LayerNorm, Linear, Scratch, as_in_out, weight_shape

Shapes = dict[str, tuple[int, ...]]


class Net(Protocol):
    """A network for a fixed number of rows; ``forward`` keeps what the backward passes need."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output rows."""
        ...

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write the gradient of every weight, return the inputs' where asked; ``dy`` may cover only the first rows."""
        ...

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and write none."""
        ...


class NetSpec(Protocol):
    """What fixes a network but for its weights."""

    @property
    def groups(self) -> int:
        """Groups that rows must lie in, one after another and equally many in each; 1 = any order."""
        ...

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        ...

    def build(
        self, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str = "net", blocks: int = 1
    ) -> Net:
        """Return the network over weights; ``rows`` are so many ``blocks`` of all groups."""
        ...


@dataclass(frozen=True)
class MLPSpec:
    """Widths from input to output, what stands between layers, and whether hidden layers are normalised."""

    widths: tuple[int, ...]
    layer_norm: bool = False
    activation: str = "relu"
    activate_last: bool = False
    """Whether the last layer is a hidden one too: for networks whose output others build upon."""
    groups: int = 1
    """Networks that differ from layer ``num_shared`` on, as heads do; each has its own rows (``nets/grouped.py``).
    What normalises hidden layers is common to all."""
    num_shared: int = 0
    """First layers that all groups have in common; of no meaning where there is one group."""

    @property
    def num_hidden(self) -> int:
        """Number of weight matrices that an activation follows."""
        return self.num_linear - (not self.activate_last)

    @property
    def num_linear(self) -> int:
        """Number of weight matrices."""
        return len(self.widths) - 1

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        shapes: Shapes = {}
        for i in range(self.num_linear):
            lead = (self.groups,) if self.is_grouped(i) else ()
            shapes[f"linear{i}.weight"] = (*lead, *weight_shape(self.widths[i], self.widths[i + 1]))
            shapes[f"linear{i}.bias"] = (*lead, self.widths[i + 1])
            if self.layer_norm and i < self.num_hidden:
                shapes[f"norm{i}.gain"] = shapes[f"norm{i}.bias"] = (self.widths[i + 1],)
        return shapes

    def is_grouped(self, layer: int) -> bool:
        """Say whether a layer has weights for each group."""
        return self.groups > 1 and layer >= self.num_shared

    def build(
        self, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str = "mlp", blocks: int = 1
    ) -> MLP:
        """Return the network over weights."""
        return MLP(self, weights, grads, rows, scratch, name, blocks)

    @classmethod
    def of(cls, weights: Views) -> MLPSpec:
        """Read the widths back from saved weights of a network with ReLU and a plain last layer."""
        biases: list[Tensor] = []
        while (name := f"linear{len(biases)}.bias") in weights:
            biases.append(weights[name])
        widths = [int(bias.shape[-1]) for bias in biases]
        widths.insert(0, weights["linear0.weight"].numel() // biases[0].numel())
        num_shared = sum(bias.ndim == 1 for bias in biases)
        groups, num_shared = (1, 0) if num_shared == len(biases) else (len(biases[-1]), num_shared)
        return cls(tuple(widths), layer_norm="norm0.gain" in weights, groups=groups, num_shared=num_shared)


def initialise(weights: Views, rng: np.random.Generator) -> None:
    """Fill with torch's default: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, identity norms."""
    for name, view in weights.items():
        layer, kind = name.rsplit(".", 1)
        if kind == "gain":
            view.fill_(1.0)
        elif "norm" in layer:
            view.zero_()
        else:
            bias, matrix = weights[f"{layer}.bias"], weights[f"{layer}.weight"]
            bound = 1.0 / math.sqrt(as_in_out(matrix, bias).shape[-2])
            values = rng.uniform(-bound, bound, tuple(view.shape)).astype(np.float32)
            view.copy_(torch.from_numpy(values))


class MLP:
    """Linear (LayerNorm) activation ... Linear, for a fixed number of rows; ``grads=None`` freezes the weights.

    Networks that share ``scratch`` and ``name`` share memory: finish one's backward before another's forward.
    """

    def __init__(
        self,
        spec: MLPSpec,
        weights: Views,
        grads: Views | None,
        rows: int,
        scratch: Scratch,
        name: str = "mlp",
        blocks: int = 1,
    ) -> None:
        self._layers: list[Layer] = []
        for i in range(spec.num_linear):
            y = scratch.take(f"{name}.y{i}", rows, spec.widths[i + 1])
            views = under(f"linear{i}", weights), under(f"linear{i}", grads) if grads else None
            # a layer's dx is the dy of the layer before: two names in turn are enough for any depth
            dx = f"dx{i % 2}"
            linear: Linear | GroupedLinear = (
                GroupedLinear(*views, y, blocks, scratch, dx) if spec.is_grouped(i) else Linear(*views, y, scratch, dx)
            )
            self._layers.append(linear)
            if i == 0:
                self._first = linear
            if i < spec.num_hidden and spec.layer_norm:
                views = under(f"norm{i}", weights), under(f"norm{i}", grads) if grads else None
                self._layers.append(LayerNorm(*views))
            if i < spec.num_hidden:
                self._layers.append(ACTIVATIONS[spec.activation]())

    def forward(self, x: Tensor) -> Tensor:
        """Return the output rows."""
        return self._after_first(self._first.forward(x))

    def forward_shared(self, shared: Tensor, own: Tensor) -> Tensor:
        """Return the output of rows ``[shared | own]``, K rows of ``own [N K, .]`` for each of ``shared [N, .]``."""
        assert isinstance(self._first, Linear)
        return self._after_first(self._first.forward_shared(shared, own))

    def _after_first(self, x: Tensor) -> Tensor:
        for layer in self._layers[1:]:
            x = layer.forward(x)
        return x

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write the gradient of every weight, return the inputs' where asked; ``dy`` may cover only the first rows."""
        return self._first.backward(self._back_to_first(dy), need_dx)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and write none."""
        return self._first.backward_inputs_from(self._back_to_first(dy), column)

    def _back_to_first(self, dy: Tensor) -> Tensor:
        for layer in reversed(self._layers[1:]):
            dx = layer.backward(dy, need_dx=True)
            assert dx is not None
            dy = dx
        return dy


class CriticSet:
    """Several critics Q_e(s, a) on the same inputs; values are ``[E, rows]``."""

    def __init__(
        self, spec: NetSpec, size: int, weights: Views, grads: Views | None, rows: int, scratch: Scratch
    ) -> None:
        self._members = [
            spec.build(under(str(e), weights), under(str(e), grads) if grads else None, rows, scratch, f"critic{e}")
            for e in range(size)
        ]

    @staticmethod
    def shapes(spec: NetSpec, size: int) -> Shapes:
        """Return the parameter names and shapes of all members."""
        return {name: shape for e in range(size) for name, shape in prefixed(str(e), spec.shapes()).items()}

    def forward(self, x: Tensor) -> Tensor:
        """Return every member's value of every row, ``[E, rows]``."""
        return torch.cat([member.forward(x).view(1, -1) for member in self._members])

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write every member's weight gradients for ``dy [E, rows]``; return the inputs', summed in order, if asked."""
        total: Tensor | None = None
        for member, dy_e in zip(self._members, dy.unsqueeze(2), strict=True):
            dx = member.backward(dy_e, need_dx)
            if dx is not None:  # members share its memory
                total = dx.clone() if total is None else total.add_(dx)
        return total

    def backward_inputs_from(self, dq: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, summed over members in order."""
        parts = [m.backward_inputs_from(dq_e, column) for m, dq_e in zip(self._members, dq.unsqueeze(2), strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total.add_(part)
        return total
