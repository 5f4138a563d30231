"""Layers with hand-written backward passes into preallocated memory: no graph is built, no weight gradient unasked."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from roboloop.nets.flat import Views

NORM_EPS = 1e-5


class Layer(Protocol):
    """One step of a network; ``forward`` keeps what ``backward`` needs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output rows for the input rows."""
        ...

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor | None:
        """Write parameter gradients where the layer has any, return the input gradient where asked."""
        ...


class Scratch:
    """Memory that networks use in turn: equal names and shapes give the same buffer, which then stays in the cache."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device, self._buffers = device, dict[tuple[str, int, int], Tensor]()

    def take(self, name: str, rows: int, columns: int) -> Tensor:
        """Return the buffer of a name; whoever took it before has lost it."""
        key = (name, rows, columns)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(rows, columns, device=self._device)
        return self._buffers[key]


def weight_shape(inputs: int, outputs: int) -> tuple[int, int]:
    """Return how a weight matrix lies in memory: long rows, since BLAS is up to four times slower on short ones."""
    return (min(inputs, outputs), max(inputs, outputs))


def as_in_out(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the view [..., in, out] of weight matrices (or of their gradients), however they lie in memory."""
    return weight if weight.shape[-1] == bias.shape[-1] else weight.mT


class Linear:
    """y = x W + b, with W seen as [in, out]."""

    def __init__(self, weights: Views, grads: Views | None, y: Tensor, scratch: Scratch, name: str) -> None:
        self._b = weights["bias"]
        self._w = as_in_out(weights["weight"], self._b)
        self._w_t = self._w.t()
        self._grads = (grads["weight"], grads["bias"]) if grads else None
        self._long_inputs = weights["weight"] is not self._w
        self._y, self._scratch, self._name = y, scratch, name
        self._x = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b for every row."""
        self._x = x
        return torch.addmm(self._b, x, self._w, out=self._y)

    def forward_shared(self, shared: Tensor, own: Tensor) -> Tensor:
        """Return x W + b for rows x that begin with one of ``shared [N, .]``, K rows after another with the same."""
        split = shared.shape[1]
        y = torch.mm(own, self._w[split:], out=self._y)
        y.view(len(shared), -1, y.shape[1]).add_(torch.addmm(self._b, shared, self._w[:split]).unsqueeze(1))
        return y

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor | None:
        """Write dW = x^T dy and db = sum of dy; return dx = dy W^T. ``dy`` may cover only the first rows."""
        self._learn(dy)
        if not need_dx:
            return None
        return torch.mm(dy, self._w_t, out=self._scratch.take(self._name, dy.shape[0], self._w.shape[0]))

    def backward_onto(self, dy: Tensor, dx: Tensor) -> None:
        """Write dW and db, and add the input gradient to ``dx``."""
        self._learn(dy)
        dx.addmm_(dy, self._w_t)

    def _learn(self, dy: Tensor) -> None:
        if self._grads is None:
            return
        dw, db = self._grads
        rows = dy.shape[0]
        x = self._x if rows == self._x.shape[0] else self._x[:rows]
        if self._long_inputs:
            torch.mm(dy.t(), x, out=dw)
        else:
            torch.mm(x.t(), dy, out=dw)
        torch.sum(dy, 0, out=db)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and nothing else."""
        return torch.mm(dy, self._w_t[:, column:])


class Activation:
    """A function of each number whose slope follows from its result, in place."""

    @staticmethod
    def apply(x: Tensor, out: Tensor) -> Tensor:
        """Write the function of every number to ``out``, which may be ``x``."""
        raise NotImplementedError

    @staticmethod
    def vjp(dy: Tensor, y: Tensor) -> Tensor:
        """Multiply the gradient by the slope where the result was ``y``, in place."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return the input memory with the function applied."""
        self._y = self.apply(x, x)
        return self._y

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor:
        """Return the gradient memory, times the slope."""
        return self.vjp(dy, self._y[: dy.shape[0]])


class ReLU(Activation):
    """max(x, 0)."""

    @staticmethod
    def apply(x: Tensor, out: Tensor) -> Tensor:
        """Set negatives to zero."""
        return x.relu_() if out is x else torch.clamp_min(x, 0.0, out=out)

    @staticmethod
    def vjp(dy: Tensor, y: Tensor) -> Tensor:
        """Set the gradient to zero where the output was."""
        torch.ops.aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)
        return dy


class Tanh(Activation):
    """tanh(x), with slope 1 - y^2."""

    @staticmethod
    def apply(x: Tensor, out: Tensor) -> Tensor:
        """Squash to (-1, 1)."""
        return torch.tanh(x, out=out)

    @staticmethod
    def vjp(dy: Tensor, y: Tensor) -> Tensor:
        """Multiply by 1 - y^2."""
        torch.ops.aten.tanh_backward.grad_input(dy, y, grad_input=dy)
        return dy


class ELU(Activation):
    """x above zero, exp(x) - 1 below, with slope min(y, 0) + 1."""

    @staticmethod
    def apply(x: Tensor, out: Tensor) -> Tensor:
        """Return the larger of x and exp(min(x, 0)) - 1, which is the same: torch's own takes twice the time."""
        below = torch.clamp_max(x, 0.0, out=torch.empty_like(x) if out is x else out).exp_().sub_(1.0)
        return torch.maximum(x, below, out=out)

    @staticmethod
    def vjp(dy: Tensor, y: Tensor) -> Tensor:
        """Multiply by min(y, 0) + 1."""
        torch.ops.aten.elu_backward.grad_input(dy, 1.0, 1.0, 1.0, True, y, grad_input=dy)
        return dy


ACTIVATIONS: dict[str, type[Activation]] = {"relu": ReLU, "tanh": Tanh, "elu": ELU}


class LayerNorm:
    """Rows shifted and scaled to mean 0 and variance 1, then by learned gain and bias."""

    def __init__(self, weights: Views, grads: Views | None) -> None:
        self._gain, self._bias = weights["gain"], weights["bias"]
        self._grads = grads

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised rows."""
        self._x = x
        y, self._mean, self._rstd = torch.native_layer_norm(x, x.shape[1:], self._gain, self._bias, NORM_EPS)
        return y

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor:
        """Write gain and bias gradients where asked; return the input gradient."""
        rows = dy.shape[0]
        wanted = [True, self._grads is not None, self._grads is not None]
        dx: Tensor
        dx, d_gain, d_bias = torch.ops.aten.native_layer_norm_backward(
            dy, self._x[:rows], dy.shape[1:], self._mean[:rows], self._rstd[:rows], self._gain, self._bias, wanted
        )
        if self._grads is not None:
            self._grads["gain"].copy_(d_gain)
            self._grads["bias"].copy_(d_bias)
        return dx
