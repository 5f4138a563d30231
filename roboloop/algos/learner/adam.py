"""Adam over a stretch of a flat parameter vector; with decoupled weight decay (arXiv:1711.05101) where asked."""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
MAX_ADAM_STEP = 2**24
"""Last whole number that float32 counts to; the bias corrections are 1 long before."""


class FlatAdam:
    """One fused Adam step on one contiguous stretch; memory and the step counter belong to the caller."""

    def __init__(
        self, param: Tensor, m: Tensor, v: Tensor, step: Tensor, lr: float, eps: float = EPS, weight_decay: float = 0.0
    ) -> None:
        self._param, self._m, self._v, self._step = [param], [m], [v], [step]
        self.lr, self._eps, self._weight_decay = lr, eps, weight_decay

    @property
    def changes(self) -> list[Tensor]:
        """What an update changes in place."""
        return [*self._param, *self._m, *self._v]

    def update(self, grad: Tensor) -> None:
        """Move the parameters; ``step`` must already count this update."""
        # the kernel of torch.optim.AdamW(fused=True), without the 60 us that the optimiser spends around it
        torch._fused_adamw_(
            self._param, [grad], self._m, self._v, [], self._step, lr=self.lr, beta1=BETA1, beta2=BETA2,
            weight_decay=self._weight_decay, eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip
