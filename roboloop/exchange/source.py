"""What every format has in common: where episodes come from, and observations from their fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from roboloop.core.fields import part
from roboloop.core.types import Array, EnvSpec
from roboloop.data.episodes import Episode, Facts, Schema


class EpisodeFile(NamedTuple):
    """A dataset of another format, to be read once from its beginning to its end."""

    schema: Schema
    episodes: Iterator[tuple[Episode, Facts]]
    left_out: Counter[str]
    """What was left out or altered, in words; filled while the episodes are read."""


def join(parts: Mapping[str, Array], spec: EnvSpec) -> Array:
    """Return the observations ``[N, ...]`` that some parts amount to."""
    rows = len(next(iter(parts.values())))
    obs = np.empty((rows, *spec.obs_shape), spec.obs_dtype)
    for name, values in parts.items():
        part(obs, name)[...] = values
    return obs
