"""From observations with a picture to rows of numbers: features by convolutions, then the vector beside the picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.core.types import Array, EnvSpec
from roboloop.nets.conv import Convolutions, ConvSpec, conv_from_data
from roboloop.nets.flat import Views
from roboloop.nets.observations import Fields

PIXEL_SHIFT, PIXEL_SCALE = 127.5, 1 / 255
"""Bytes become numbers from -1/2 to 1/2."""
MAX_NETS = 4
"""Numbers of rows for which convolutions are kept ready."""


@dataclass(frozen=True)
class SightSpec:
    """What fixes the eyes of a policy but for their weights."""

    frames: int
    conv: ConvSpec

    @property
    def features(self) -> int:
        """Numbers that the convolutions make of a picture."""
        return self.conv.layers()[-1].size

    def to_data(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> SightSpec:
        """Return the spec that ``to_data`` described."""
        return cls(data["frames"], conv_from_data(data["conv"]))


def pixel_norm(conv: ConvSpec, device: torch.device | str) -> Tensor:
    """Return shift and scale of each channel's pixels."""
    shift_scale = torch.tensor([[PIXEL_SHIFT], [PIXEL_SCALE]], device=device)
    return shift_scale.repeat(1, conv.picture[0])


class Sight:
    """Reads pictures of any number of observations, by weights that a trainer may go on changing."""

    def __init__(self, spec: SightSpec, env: EnvSpec, weights: Views) -> None:
        self.spec = spec
        self.fields = Fields.of(env, spec.frames)
        self._weights, self._device = weights, next(iter(weights.values())).device
        self._nets: dict[int, Convolutions] = {}

    def vector(self, obs: Array) -> Array:
        """Return what stands beside the pictures ``[rows, vector_dim]``, as it is."""
        return self.fields.vector(obs, len(obs))

    def features(self, obs: Array) -> Tensor:
        """Return the features ``[rows, features]`` of the pictures; the next call overwrites them."""
        rows, conv = len(obs), self.spec.conv
        blocks = np.empty((rows, conv.block_bytes), np.uint8)
        conv.to_blocks(self.fields.pixels(obs, rows, self.fields.pictures[0]), blocks)
        return self._net(rows).forward(torch.from_numpy(blocks).to(self._device))

    def _net(self, rows: int) -> Convolutions:
        if rows not in self._nets:
            if len(self._nets) == MAX_NETS:
                self._nets.clear()
            norm = pixel_norm(self.spec.conv, self._device)
            self._nets[rows] = Convolutions(self.spec.conv, self._weights, None, norm, rows, learned=0)
        return self._nets[rows]
