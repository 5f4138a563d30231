"""What an update is given, written through numpy: in place on the CPU, sent to other devices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.learner.inputs import Arrays
from roboloop.core.types import Array
from roboloop.nets.flat import Views


class Staging:
    """Arrays over shared memory, by name."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.arrays: dict[str, Array] = {name: view.cpu().numpy() for name, view in views.items()}

    def put(self, name: str, values: Array | np.float32) -> None:
        """Write values, with the shape that they have there."""
        target = self.arrays[name]
        np.copyto(target, np.reshape(values, target.shape), casting="same_kind")
        self.send(name)

    def send(self, name: str) -> None:
        """Make known what was written to an array; on the CPU it is known already."""
        view = self._views[name]
        if view.device.type != "cpu":
            view.copy_(torch.from_numpy(self.arrays[name]))


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
