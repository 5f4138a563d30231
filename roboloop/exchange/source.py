"""What every format has in common: where episodes come from, and how observations and actions are taken apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.types import Array, EnvSpec
from roboloop.data.episodes import Episode, Facts, Schema

WHOLE = ""
"""Name of the only part of an observation that is not a record."""


class EpisodeFile(NamedTuple):
    """A dataset of another format, to be read once from its beginning to its end."""

    schema: Schema
    episodes: Iterator[tuple[Episode, Facts]]
    left_out: Counter[str]
    """What was left out or altered, in words; filled while the episodes are read."""


class FieldPart(NamedTuple):
    """One array of an observation."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_picture(self) -> bool:
        """Whether it is pixels, ``[C, H, W]``."""
        return self.dtype == np.uint8 and len(self.shape) == 3


def parts_of(spec: EnvSpec) -> dict[str, FieldPart]:
    """Return the fields of observations that are records, or all of it by the name ``WHOLE``."""
    fields = spec.obs_dtype.fields
    if fields is None:
        return {WHOLE: FieldPart(spec.obs_dtype, spec.obs_shape)}
    return {name: FieldPart(kind.base, kind.shape) for name, (kind, *_) in fields.items()}


def part(obs: Array, name: str) -> Array:
    """Return one part of observations ``[N, ...]``."""
    return obs if name == WHOLE else obs[name]


def join(parts: Mapping[str, Array], spec: EnvSpec) -> Array:
    """Return the observations ``[N, ...]`` that some parts amount to."""
    rows = len(next(iter(parts.values())))
    obs = np.empty((rows, *spec.obs_shape), spec.obs_dtype)
    for name, values in parts.items():
        part(obs, name)[...] = values
    return obs
