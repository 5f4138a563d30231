"""What networks take out of an observation: pictures, one vector, and a mask of the actions that are possible now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK, PICKS, part, parts_of
from roboloop.core.types import Array, EnvSpec


class Picture(NamedTuple):
    """A field of uint8 pixels, ``[channels, height, width]``, frames of a stack one after another in the channels."""

    field: str
    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Fields:
    """How observations, or stacks of ``frames`` of them, fall into parts."""

    frames: int
    pictures: tuple[Picture, ...]
    vectors: tuple[str, ...]
    vector_dim: int
    """Numbers of all vector fields and all frames together."""
    mask_dim: int
    picks: tuple[int, ...] = ()
    """Candidates and the numbers of each, where they are told apart from vectors."""

    @classmethod
    def of(cls, spec: EnvSpec, frames: int, picks: bool = False) -> Fields:
        """Read the fields off an environment's spec; ``picks`` = tell candidates apart from other numbers."""
        pictures, vectors, vector_dim, mask_dim = [], [], 0, 0
        candidates: tuple[int, ...] = ()
        for name, about in parts_of(spec).items():
            if name == MASK:
                mask_dim = math.prod(about.shape)
            elif name == PICKS and picks:
                candidates = about.shape
            elif about.is_picture:
                pictures.append(Picture(name, frames * about.shape[0], *about.shape[1:]))
            else:
                vectors.append(name)
                vector_dim += frames * math.prod(about.shape)
        if mask_dim and mask_dim != sum(spec.action_choices):
            raise ConfigError(f"{MASK} has {mask_dim} entries, but there are {sum(spec.action_choices)} choices")
        return cls(frames, tuple(pictures), tuple(vectors), vector_dim, mask_dim, candidates)

    def vector(self, obs: Array, rows: int) -> Array:
        """Return all vector fields as float32 ``[rows, vector_dim]``."""
        columns = [np.ascontiguousarray(part(obs, name), np.float32).reshape(rows, -1) for name in self.vectors]
        if len(columns) == 1:
            return columns[0]
        return np.concatenate([np.zeros((rows, 0), np.float32), *columns], axis=1)

    def pixels(self, obs: Array, rows: int, picture: Picture) -> Array:
        """Return a picture field as uint8 ``[rows, channels, height, width]``."""
        return part(obs, picture.field).reshape(rows, *picture[1:])


def action_mask(obs: Array, rows: int) -> Array | None:
    """Return which choices are possible in the newest frame as bools ``[rows, sum of choices]``; None = all."""
    if obs.dtype.names is None or MASK not in obs.dtype.names:
        return None
    mask = obs[MASK]
    newest: Array = mask.reshape(rows, -1, mask.shape[-1])[:, -1] != 0
    return newest
