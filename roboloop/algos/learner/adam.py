"""Adam over a stretch of a flat parameter vector; with decoupled weight decay (arXiv:1711.05101) where asked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
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
