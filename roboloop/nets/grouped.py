"""Linear layers of K networks of equal shape in one batched matrix product, for heads of several tasks.

Rows lie group by group, ``[K, n]``, so a row meets the weights of its own group only: no K^2 work.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roboloop.core.types import Array
from roboloop.nets.flat import Views
from roboloop.nets.layers import Scratch, as_in_out


class GroupedLinear:
    """y = x W_k + b_k for the rows of group k, with W seen as [K, in, out]; in and out as the rows of a plain layer.

    The rows may be several ``blocks`` of all groups one after another, such as states and their successors.
    """

    def __init__(
        self, weights: Views, grads: Views | None, y: Tensor, blocks: int, scratch: Scratch, name: str
    ) -> None:
        bias = weights["bias"]
        self._w, self._b = as_in_out(weights["weight"], bias), bias.unsqueeze(1)
        self._w_t = self._w.mT
        self._groups, self._inputs, self._outputs = self._w.shape
        self._grads = (grads["weight"], grads["bias"]) if grads else None
        self._long_inputs = weights["weight"] is not self._w
        self._n = len(y) // (blocks * self._groups)
        self._y, self._y_blocks = y, self._in_blocks(y)
        self._scratch, self._name = scratch, name
        self._x = torch.empty(0)

    def _in_blocks(self, rows: Tensor) -> Tensor:
        """Return rows as ``[blocks, K, n, columns]``; fewer than a block are the first of each group."""
        return rows.view(-1, self._groups, min(self._n, len(rows) // self._groups), rows.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Return x W_k + b_k for every row."""
        self._x = self._in_blocks(x)
        for x_block, y_block in zip(self._x, self._y_blocks, strict=True):
            torch.baddbmm(self._b, x_block, self._w, out=y_block)
        return self._y

    def backward(self, dy: Tensor, need_dx: bool) -> Tensor | None:
        """Write dW_k = x^T dy and db_k = sum of dy; return dx = dy W_k^T.

        ``dy`` may cover only the first blocks, or the first rows of each group in the first block.
        """
        dy_blocks = self._in_blocks(dy)
        if self._grads is not None:
            self._learn(dy_blocks, *self._grads)
        if not need_dx:
            return None
        dx = self._scratch.take(self._name, dy.shape[0], self._inputs)
        for dy_block, dx_block in zip(dy_blocks, self._in_blocks(dx), strict=True):
            torch.bmm(dy_block, self._w_t, out=dx_block)
        return dx

    def _learn(self, dy: Tensor, dw: Tensor, db: Tensor) -> None:
        for number, (x_block, dy_block) in enumerate(zip(self._x[:, :, : dy.shape[2]], dy, strict=False)):
            left, right = (dy_block.mT, x_block) if self._long_inputs else (x_block.mT, dy_block)
            dw.baddbmm_(left, right, beta=float(number > 0))  # with 0, what lay there does not count
        torch.sum(dy, (0, 2), out=db)

    def backward_inputs_from(self, dy: Tensor, column: int) -> Tensor:
        """Return the gradient of the input columns from ``column`` on, and nothing else."""
        parts = [torch.bmm(dy_block, self._w_t[:, :, column:]) for dy_block in self._in_blocks(dy)]
        return torch.cat(parts).flatten(0, 1)


def places_by_group(group: Array, num_groups: int) -> tuple[Array, int]:
    """Return where rows of any order go among ``[K, n]`` rows, and the least n that holds them all."""
    counts = np.bincount(group, minlength=num_groups)
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    n = int(counts.max())
    return group * n + rank, n
