"""What an update is given, written through numpy: in place on the CPU, sent to other devices."""

from __future__ import annotations

import torch
from torch import Tensor

from roboloop.algos.learner.inputs import Arrays
from roboloop.core.types import Array


class Given:
    """Arrays that lie in one stretch of memory, by name: to another device they go in one copy."""

    def __init__(self, arrays: Arrays, flat: Tensor) -> None:
        self._flat, self._is_here = flat, flat.device.type == "cpu"
        self._host = flat if self._is_here else torch.zeros(flat.shape, pin_memory=flat.device.type == "cuda")
        self.arrays: dict[str, Array] = {name: view.numpy() for name, view in arrays.views(self._host).items()}

    def send(self) -> None:
        """Make known what was written; on the CPU it is known already."""
        if not self._is_here:
            self._flat.copy_(self._host, non_blocking=True)
