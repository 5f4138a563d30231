"""What losses and policies are given: named arrays of any type in one flat memory, and observations as such arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roboloop.core.fields import PICKS
from roboloop.core.types import Array
from roboloop.nets.flat import Layout, Views
from roboloop.nets.normalize import Normalizer
from roboloop.nets.observations import Fields, action_mask

if TYPE_CHECKING:
    from roboloop.nets.conv import ConvSpec

Rows = SimpleNamespace
"""Tensors by name, one row per transition."""
DTYPES = {"float32": torch.float32, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool}


class Input(NamedTuple):
    """One array that losses are given."""

    shape: tuple[int, ...]
    """Of one shard's part."""
    dtype: str = "float32"
    common: bool = False
    """One array that all shards see, such as a rollout from which each takes its rows."""

    @property
    def floats(self) -> int:
        """Memory that it takes, in float32."""
        return -(-math.prod(self.shape) * DTYPES[self.dtype].itemsize // 4)

    def view(self, floats: Tensor) -> Tensor:
        """Return the array over memory of floats."""
        if self.dtype == "float32":
            return floats.view(self.shape)
        return floats.view(DTYPES[self.dtype])[: math.prod(self.shape)].view(self.shape)

    def times(self, count: int) -> Input:
        """Return the array of so many parts."""
        return self._replace(shape=(count, *self.shape))


class Arrays:
    """Named arrays, laid out one after another in one flat float32 vector."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self.inputs = dict(inputs)
        self._layout = Layout({name: (each.floats,) for name, each in self.inputs.items()})
        self.size = self._layout.size

    def views(self, flat: Tensor) -> Views:
        """Return the named tensors; writing to one writes to ``flat``."""
        return {name: self.inputs[name].view(floats) for name, floats in self._layout.views(flat).items()}


def rows_of(arrays: Mapping[str, Tensor]) -> Rows:
    """Return arrays as attributes; a dot in a name makes a record of its own: ``obs.vector`` is ``rows.obs.vector``."""
    rows = Rows()
    for name, array in arrays.items():
        *records, leaf = name.split(".")
        here = rows
        for record in records:
            if not hasattr(here, record):
                setattr(here, record, Rows())
            here = getattr(here, record)
        setattr(here, leaf, array)
    return rows


class ObsInputs:
    """Observations as arrays: one vector, or beside pictures and masks a record of ``vector``, ``picture0``, ``mask``.

    A picture comes as pixels ``[N, C, H, W]``, or as the blocks that a convolution reads.
    """

    def __init__(self, fields: Fields, reads: Sequence[ConvSpec] = ()) -> None:
        self.fields, self._reads = fields, reads
        self.is_record = bool(fields.pictures or fields.mask_dim or fields.picks)

    def arrays(self, rows: int) -> dict[str, Input]:
        """Return the arrays of so many observations, by the end of their names."""
        vector = Input((rows, self.fields.vector_dim))
        if not self.is_record:
            return {"": vector}
        found = {".vector": vector}
        for i, picture in enumerate(self.fields.pictures):
            shape = (self._reads[i].block_bytes,) if self._reads else picture[1:]
            found[f".picture{i}"] = Input((rows, *shape), "uint8")
        if self.fields.mask_dim:
            found[".mask"] = Input((rows, self.fields.mask_dim), "bool")
        if self.fields.picks:
            found[".picks"] = Input((rows, *self.fields.picks))
        return found

    def write(self, obs: Array, rows: int, out: Mapping[str, Array], name: str, norm: Normalizer) -> None:
        """Write so many observations to ``out[name...]``, which may lie in several parts; vectors normalised."""
        put(out[name + (".vector" if self.is_record else "")], norm(self.fields.vector(obs, rows)))
        for i, picture in enumerate(self.fields.pictures):
            pixels, target = self.fields.pixels(obs, rows, picture), out[f"{name}.picture{i}"]
            if self._reads:
                self._reads[i].to_blocks(pixels, target.reshape(rows, -1))
            else:
                put(target, pixels)
        if self.fields.mask_dim:
            mask = action_mask(obs, rows)
            assert mask is not None
            put(out[f"{name}.mask"], mask)
        if self.fields.picks:
            put(out[f"{name}.picks"], obs[PICKS])


def put(target: Array, values: Array) -> None:
    """Write values with the shape that they have there."""
    np.copyto(target, np.reshape(values, target.shape), casting="same_kind")


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
