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


class Linear:
    """y = x W + b, with W as [in, out]."""

    def __init__(self, weights: Views, grads: Views | None, y: Tensor) -> None:
        self._w, self._b = weights["weight"], weights["bias"]
        self._w_t = self._w.t()
        self._dw: Tensor | None = grads["weight"] if grads else None
        self._db: Tensor | None = grads["bias"] if grads else None
        self._y = y
        self._x = self._dx = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b for every row."""
        self._x = x
        return torch.addmm(self._b, x, self._w, out=self._y)

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor | None:
        """Write dW = x^T dy and db = sum of dy; return dx = dy W^T. ``dy`` may cover only the first rows."""
        rows = dy.shape[0]
        if self._dw is not None:
            torch.mm(self._x[:rows].t(), dy, out=self._dw)
            torch.sum(dy, 0, out=self._db)
        if not need_dx:
            return None
        if self._dx.shape[0] != rows:
            self._dx = torch.empty(rows, self._w.shape[0], device=dy.device)
        return torch.mm(dy, self._w_t, out=self._dx)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and nothing else."""
        return torch.mm(dy, self._w_t[:, column:])


class ReLU:
    """max(x, 0), in place."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input memory with negatives set to zero."""
        self._y = x.relu_()
        return self._y

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor:
        """Return the gradient memory, zero where the output was."""
        torch.ops.aten.threshold_backward.grad_input(dy, self._y[: dy.shape[0]], 0, grad_input=dy)
        return dy


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
