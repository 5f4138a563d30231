"""Gradients of all shards to moved parameters: summed, shortened, and Adam over stretches of a flat vector.

A shard sums its stretch of all shards' gradients and moves those parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roboloop.algos.learner.shards import stretch, sum_in_order
from roboloop.nets.flat import Views

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
NORM_EPS = 1e-6
MAX_ADAM_STEP = 2**24
"""Last whole number that float32 counts to; the bias corrections are 1 long before."""


@dataclass(frozen=True)
class Adam:
    """How parameters move: Adam, or AdamW where weights decay."""

    lr: float
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    """Longest gradient; 0 is not limited."""
    beta1: float = BETA1
    beta2: float = BETA2
    eps: float = EPS
    scheduled: bool = True
    """Whether the step size follows ``lr_schedule``."""


class FlatAdam:
    """One fused Adam step on one contiguous stretch; memory and the step counter belong to the caller."""

    def __init__(self, param: Tensor, m: Tensor, v: Tensor, step: Tensor, adam: Adam) -> None:
        self._param, self._m, self._v, self._step = [param], [m], [v], [step]
        self._adam = adam

    @property
    def changes(self) -> list[Tensor]:
        """What an update changes in place."""
        return [*self._param, *self._m, *self._v]

    def update(self, grad: Tensor, lr: float | Tensor | None = None) -> None:
        """Move the parameters, by the given step size if there is one; ``step`` must already count this update."""
        adam = self._adam
        # the kernel of torch.optim.AdamW(fused=True), without the 60 us that the optimiser spends around it
        torch._fused_adamw_(
            self._param, [grad], self._m, self._v, [], self._step, lr=adam.lr if lr is None else lr,
            beta1=adam.beta1, beta2=adam.beta2,
            weight_decay=adam.weight_decay, eps=adam.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


class GradientStep:
    """Over shared memory ``grad [shards, size]``, ``m``, ``v``, ``step``, ``lr`` and ``squares [shards, ...]``.

    ``lr`` is the step size in multiples of the optimiser's.
    """

    def __init__(self, mem: Views, param: Tensor, index: int, adam: Adam) -> None:
        part = stretch(param.numel(), len(mem["grad"]), index)
        self._grads = list(mem["grad"][:, part])
        # the sum of one is itself, and may be shortened where it is
        self._grad = self._grads[0] if len(self._grads) == 1 else torch.empty_like(self._grads[0])
        self._lr, self._squares, self._own_squares = mem["lr"], mem["squares"], mem["squares"][index]
        self._limit, self._lr_unit, self._is_summed = adam.max_grad_norm, adam.lr, False
        self._adam = FlatAdam(param[part], mem["m"][part], mem["v"][part], mem["step"][0], adam)

    @property
    def changes(self) -> list[Tensor]:
        """What moving changes in place."""
        return self._adam.changes

    def sum(self) -> None:
        """Sum the shards' gradients of this stretch in order, and say how long the sum is."""
        sum_in_order(self._grads, self._grad)
        self._own_squares[0] = torch.dot(self._grad, self._grad)
        self._is_summed = True

    def move(self) -> None:
        """Shorten the whole gradient where it is too long, and move this stretch of the parameters.

        Where nobody asked how long it is, it is summed here.
        """
        if not self._is_summed:
            sum_in_order(self._grads, self._grad)
        self._is_summed = False
        if self._limit:
            self._shorten()
        on_cpu = self._lr.device.type == "cpu"
        self._adam.update(self._grad, self._lr_unit * (float(self._lr) if on_cpu else self._lr[0]))

    def _shorten(self) -> None:
        if self._grad.device.type != "cpu":  # the host must not wait for the length
            length = self._squares[:, 0].sum().sqrt()
            self._grad.mul_((self._limit / (length + NORM_EPS)).clamp_(max=1.0))
        elif (norm := float(self._squares[:, 0].sum().sqrt())) > self._limit:
            self._grad.mul_(self._limit / (norm + NORM_EPS))
