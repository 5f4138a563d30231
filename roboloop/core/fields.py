"""How an observation falls into fields: pictures, numbers, a mask of actions, candidate picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.types import Array, EnvSpec

IMAGE, VECTOR, MASK, PICKS = "image", "vector", "action_mask", "picks"
"""What suites of ours call their fields; a picture may have any other name."""
RESERVED = (VECTOR, MASK, PICKS)
"""Names that say what a field means: no picture is called so."""
WHOLE = ""
"""Name of the only field of an observation that is not a record."""
SPACES = ("obs_shape", "obs_dtype", "action_low", "action_high", "action_choices")
"""What must be the same in two environments for a policy to fit both."""


class FieldPart(NamedTuple):
    """One array of an observation."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_picture(self) -> bool:
        """Whether it is pixels, ``[C, H, W]``."""
        return self.dtype == np.uint8 and len(self.shape) == 3


def parts_of_dtype(dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, FieldPart]:
    """Return the fields of a record, or all of an array by the name ``WHOLE``."""
    if dtype.fields is None:
        return {WHOLE: FieldPart(dtype, shape)}
    # in the record's own order
    return {name: FieldPart(dtype[name].base, dtype[name].shape) for name in dtype.names or ()}


def parts_of(spec: EnvSpec) -> dict[str, FieldPart]:
    """Return the fields of an environment's observations."""
    return parts_of_dtype(spec.obs_dtype, tuple(spec.obs_shape))


def part(obs: Array, name: str) -> Array:
    """Return one field of observations."""
    return obs if name == WHOLE else obs[name]


def pictures_in(obs: Array) -> Mapping[str, Array]:
    """Return the fields of observations ``[N, ...]`` that are pictures, ``[N, C, H, W]``, by name."""
    parts = parts_of_dtype(obs.dtype, obs.shape[1:])
    return {name: part(obs, name) for name, about in parts.items() if about.is_picture}


def first_difference(spec: EnvSpec, other: EnvSpec) -> str:
    """Return the first thing in which the spaces of two environments differ; empty where a policy fits both."""
    return next((name for name in SPACES if getattr(spec, name) != getattr(other, name)), "")
