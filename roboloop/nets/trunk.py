"""Networks that first narrow the many features of a picture to a few: a trunk, then layers over it and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLP, CriticSet, MLPSpec, Net, NetSpec, Shapes


@dataclass(frozen=True)
class TrunkSpec:
    """Rows ``[features | rest]`` to Linear, LayerNorm and tanh of the features, then a head over ``[trunk | rest]``."""

    features: int
    width: int
    head: MLPSpec

    groups = 1

    @property
    def trunk(self) -> MLPSpec:
        """What narrows the features."""
        return MLPSpec((self.features, self.width), layer_norm=True, activation="tanh", activate_last=True)

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        return prefixed("trunk", self.trunk.shapes()) | prefixed("head", self.head.shapes())

    def build(
        self, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str = "net", blocks: int = 1
    ) -> TrunkHead:
        """Return the network over weights."""
        head = self.head.build(*_parts("head", weights, grads), rows, scratch, name, blocks)
        return self.under(head, weights, grads, rows, scratch, name)

    def under(
        self, head: Net | CriticSet, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str
    ) -> TrunkHead:
        """Put a trunk of these weights under a head."""
        return TrunkHead(self.trunk.build(*_parts("trunk", weights, grads), rows, scratch, f"{name}.trunk"), head, self)

    @classmethod
    def of(cls, weights: Views) -> TrunkSpec:
        """Read the widths back from saved weights."""
        features, width = MLPSpec.of(under("trunk", weights)).widths
        return cls(features, width, MLPSpec.of(under("head", weights)))


class TrunkHead:
    """A trunk and a head; gradients by the inputs are those of the features alone, or of columns behind them."""

    def __init__(self, trunk: MLP, head: Net | CriticSet, spec: TrunkSpec) -> None:
        self._trunk, self._head = trunk, head
        self._features, self._width = spec.features, spec.width

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's outputs."""
        narrow = self._trunk.forward(x[:, : self._features])
        return self._head.forward(torch.cat((narrow, x[:, self._features :]), 1))

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write the gradient of every weight, return the features' where asked."""
        d_joined = self._head.backward(dy, True)
        assert d_joined is not None
        return self._trunk.backward(d_joined[:, : self._width].contiguous(), need_dx)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column``, behind the features, on, and write none."""
        return self._head.backward_inputs_from(dy, column - self._features + self._width)


class Critics(Protocol):
    """Several critics ``Q_e(s, a)`` on the same inputs; values are ``[E, rows]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return every member's value of every row."""
        ...

    def backward(self, dy: Tensor, need_dx: bool = False) -> Tensor | None:
        """Write the gradient of every weight, return the inputs' where asked, or only the features' of a trunk."""
        ...

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and write none."""
        ...


def critic_shapes(spec: NetSpec, size: int) -> Shapes:
    """Return the parameters of so many critics; a trunk is common to all."""
    if isinstance(spec, TrunkSpec):
        return prefixed("trunk", spec.trunk.shapes()) | CriticSet.shapes(spec.head, size)
    return CriticSet.shapes(spec, size)


def build_critics(
    spec: NetSpec, size: int, weights: Views, grads: Views | None, rows: int, scratch: Scratch
) -> Critics:
    """Return so many critics over weights of ``critic_shapes``."""
    if isinstance(spec, TrunkSpec):
        heads = CriticSet(spec.head, size, weights, grads, rows, scratch)
        return spec.under(heads, weights, grads, rows, scratch, "critics")
    return CriticSet(spec, size, weights, grads, rows, scratch)


def _parts(name: str, weights: Views, grads: Views | None) -> tuple[Views, Views | None]:
    return under(name, weights), under(name, grads) if grads else None
