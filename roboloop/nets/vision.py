"""From observations with pictures to rows of numbers: features by convolutions, then the vector beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.core.errors import DataError
from roboloop.core.types import Array, EnvSpec
from roboloop.nets.conv import Convolutions, ConvSpec, conv_from_data
from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.mlp import Shapes
from roboloop.nets.observations import Fields

PIXEL_SHIFT, PIXEL_SCALE = 127.5, 1 / 255
"""Bytes become numbers from -1/2 to 1/2."""
MAX_NETS = 4
"""Numbers of rows for which convolutions are kept ready."""


@dataclass(frozen=True)
class VisionSpec:
    """What fixes the encoders of pictures but for their weights."""

    frames: int
    convs: tuple[ConvSpec, ...]
    """One for each picture, in the order of the observation's fields."""

    def to_data(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return {"frames": self.frames, "convs": [asdict(conv) for conv in self.convs]}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> VisionSpec:
        """Return the spec that ``to_data`` described."""
        convs = data["convs"] if "convs" in data else [data["conv"]]  # older runs saw one picture
        return cls(data["frames"], tuple(map(conv_from_data, convs)))


def num_features(convs: Sequence[ConvSpec]) -> int:
    """Return the numbers that the convolutions of all pictures make together."""
    return sum(conv.layers()[-1].size for conv in convs)


def conv_shapes(convs: Sequence[ConvSpec]) -> Shapes:
    """Return the parameter names and shapes of all pictures' convolutions."""
    named = [prefixed(conv_name(i), conv.shapes()) for i, conv in enumerate(convs)]
    return {name: shape for shapes in named for name, shape in shapes.items()}


def conv_name(picture: int) -> str:
    """Return the prefix of the parameters of a picture's convolutions; the first one's has no number."""
    return f"conv{picture or ''}"


def pixel_norm(conv: ConvSpec, device: torch.device | str) -> Tensor:
    """Return shift and scale of each channel's pixels."""
    shift_scale = torch.tensor([[PIXEL_SHIFT], [PIXEL_SCALE]], device=device)
    return shift_scale.repeat(1, conv.picture[0])


class VisionEncoder:
    """Reads pictures of any number of observations, by weights that a trainer may go on changing.

    ``weights`` are a policy's: those of the convolutions are found by their names.
    """

    def __init__(self, spec: VisionSpec, env: EnvSpec, weights: Views) -> None:
        self.spec = spec
        self.fields = Fields.of(env, spec.frames)
        if (shown := [p[1:] for p in self.fields.pictures]) != (seen := [tuple(c.picture) for c in spec.convs]):
            raise DataError(
                f"the policy sees pictures of {seen}, the environment shows {shown}: they have changed since"
            )
        self._weights, self._device = weights, next(iter(weights.values())).device
        self._nets: dict[int, list[Convolutions]] = {}

    def vector(self, obs: Array) -> Array:
        """Return what stands beside the pictures ``[rows, vector_dim]``, as it is."""
        return self.fields.vector(obs, len(obs))

    def features(self, obs: Array) -> Tensor:
        """Return the features ``[rows, features]`` of all pictures side by side; the next call overwrites them."""
        rows, found = len(obs), []
        for conv, picture, net in zip(self.spec.convs, self.fields.pictures, self._net(rows), strict=True):
            blocks = np.empty((rows, conv.block_bytes), np.uint8)
            conv.to_blocks(self.fields.pixels(obs, rows, picture), blocks)
            found.append(net.forward(torch.from_numpy(blocks).to(self._device)))
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def _net(self, rows: int) -> list[Convolutions]:
        if rows not in self._nets:
            if len(self._nets) == MAX_NETS:
                self._nets.clear()
            self._nets[rows] = [
                Convolutions(
                    conv, under(conv_name(i), self._weights), None, pixel_norm(conv, self._device), rows, learned=0
                )
                for i, conv in enumerate(self.spec.convs)
            ]
        return self._nets[rows]
