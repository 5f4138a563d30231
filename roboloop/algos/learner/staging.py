"""What an update is given, written through numpy: in place on the CPU, sent to other devices."""

from __future__ import annotations

import numpy as np
import torch

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
