"""A shard's part of a gradient step: it sums its stretch of all shards' gradients and moves those parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from roboloop.algos.learner.adam import EPS, FlatAdam
from roboloop.algos.learner.shards import stretch, sum_in_order
from roboloop.nets.flat import Views

NORM_EPS = 1e-6


class PlainStep:
    """Sums and moves at once, with nothing known of the whole gradient; over memory as GradientStep."""

    def __init__(self, mem: Views, param: Tensor, index: int, lr_unit: float) -> None:
        part = stretch(param.numel(), len(mem["grad"]), index)
        self._grads, self._lr, self._lr_unit = list(mem["grad"][:, part]), mem["lr"], lr_unit
        self._grad = torch.empty_like(self._grads[0])
        self._adam = FlatAdam(param[part], mem["m"][part], mem["v"][part], mem["step"][0], 0.0)

    @property
    def changes(self) -> list[Tensor]:
        """What moving changes in place."""
        return self._adam.changes

    def move(self) -> None:
        """Sum the shards' gradients of this stretch in order, and move it."""
        self._adam.lr = self._lr_unit * float(self._lr)
        self._adam.update(sum_in_order(self._grads, self._grad))


class GradientStep:
    """Over shared memory ``grad [shards, size]``, ``m``, ``v``, ``step``, ``lr`` and ``squares [shards, ...]``.

    ``lr`` is the step size in multiples of ``lr_unit``.
    """

    def __init__(
        self,
        mem: Views,
        param: Tensor,
        index: int,
        max_grad_norm: float,
        eps: float = EPS,
        weight_decay: float = 0.0,
        lr_unit: float = 1.0,
    ) -> None:
        part = stretch(param.numel(), len(mem["grad"]), index)
        self._grads = list(mem["grad"][:, part])
        self._grad = torch.empty_like(self._grads[0])
        self._lr, self._squares, self._own_squares = mem["lr"], mem["squares"], mem["squares"][index]
        self._limit, self._lr_unit = max_grad_norm, lr_unit
        self._adam = FlatAdam(param[part], mem["m"][part], mem["v"][part], mem["step"][0], 0.0, eps, weight_decay)

    @property
    def changes(self) -> list[Tensor]:
        """What moving changes in place."""
        return self._adam.changes

    def sum(self) -> None:
        """Sum the shards' gradients of this stretch in order, and say how long the sum is."""
        sum_in_order(self._grads, self._grad)
        self._own_squares[0] = torch.dot(self._grad, self._grad)

    def move(self) -> None:
        """Shorten the whole gradient where it is too long, and move this stretch of the parameters."""
        norm = float(self._squares[:, 0].sum().sqrt())
        if self._limit and norm > self._limit:
            self._grad.mul_(self._limit / (norm + NORM_EPS))
        self._adam.lr = self._lr_unit * float(self._lr)
        self._adam.update(self._grad)
