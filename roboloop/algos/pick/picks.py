"""Observations that offer picks: what placing sees of them once something is picked, and what is left without them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.fields import IMAGE, PICKS, VECTOR
from roboloop.core.types import Array, EnvSpec


@dataclass(frozen=True)
class PickLayout:
    """What is offered: ``num`` candidates of ``dim`` numbers each, in the units of an action's first columns."""

    num: int
    dim: int
    is_choice: bool
    """Whether the candidates are the K things themselves, one-hot, and not places."""
    vector_dim: int
    """Numbers that are seen beside pictures and picks."""
    image: np.dtype[Any] | None
    """The picture that is seen, if any."""

    @classmethod
    def of(cls, spec: EnvSpec) -> PickLayout:
        """Read it off an environment's spec."""
        fields: Mapping[str, Any] = spec.obs_dtype.fields or {}
        if PICKS not in fields:
            raise ConfigError("algo 'pick' needs observations with candidate picks: set env.soft.pick: chosen")
        if set(fields) - {PICKS, IMAGE, VECTOR}:
            raise ConfigError(f"algo 'pick' knows the fields image, vector and picks, not {', '.join(fields)}")
        num, dim = fields[PICKS][0].shape
        if dim >= spec.action_dim:
            raise ConfigError(f"picks have {dim} numbers, and actions only {spec.action_dim}: nothing is left to place")
        is_choice = spec.protocol.get("pick") == "corner"
        if is_choice and num != dim:
            raise ConfigError(f"picks that are choices are one-hot: {num} candidates cannot have {dim} numbers")
        vector_dim = math.prod(fields[VECTOR][0].shape) if VECTOR in fields else 0
        return cls(num, dim, is_choice, vector_dim, fields[IMAGE][0] if IMAGE in fields else None)

    def placing(self, spec: EnvSpec, copies: int) -> EnvSpec:
        """Return what placing sees and does: the pick behind the observation, and the displacement."""
        bounds = {name: getattr(spec, name)[self.dim :] for name in ("action_low", "action_high")}
        return self._seeing(dataclasses.replace(spec, **bounds), self.vector_dim + copies * self.dim)

    def unaided(self, spec: EnvSpec) -> EnvSpec:
        """Return the same environment without candidates."""
        return self._seeing(spec, self.vector_dim)

    def _seeing(self, spec: EnvSpec, vector_dim: int) -> EnvSpec:
        dtype = self._dtype(vector_dim)
        shape: tuple[int, ...] = ()
        if dtype.subdtype is not None:  # a single field is a plain array
            dtype, shape = dtype.subdtype
        return dataclasses.replace(spec, obs_shape=shape, obs_dtype=dtype)

    def _dtype(self, vector_dim: int) -> np.dtype[Any]:
        vector = np.dtype((np.float32, (vector_dim,)))
        if self.image is None:
            return vector
        return np.dtype([(IMAGE, self.image), (VECTOR, vector)]) if vector_dim else self.image

    def with_pick(self, obs: Array, pick: Array, copies: int) -> Array:
        """Return observations ``[N]`` with the pick ``[N, P]`` of each, so often, behind their numbers."""
        return self._joined(obs, np.tile(pick.astype(np.float32), (1, copies)))

    def numbers_with_candidates(self, obs: Array, copies: int) -> Array:
        """Return all but the pictures, with each candidate picked: ``[N * K, numbers]``."""
        rows = np.tile(obs[PICKS].reshape(-1, self.dim).astype(np.float32), (1, copies))
        if not self.vector_dim:
            return rows
        return np.concatenate((np.repeat(obs[VECTOR].reshape(len(obs), -1), self.num, axis=0), rows), axis=1)

    def without(self, obs: Array) -> Array:
        """Return observations ``[N]`` without their candidates."""
        return self._joined(obs, np.zeros((len(obs), 0), np.float32))

    def _joined(self, obs: Array, numbers: Array) -> Array:
        if self.vector_dim:
            numbers = np.concatenate((obs[VECTOR].reshape(len(obs), -1), numbers), axis=1)
        if self.image is None:
            return numbers
        if not numbers.shape[1]:
            return np.ascontiguousarray(obs[IMAGE])
        joined = np.empty(len(obs), self._dtype(numbers.shape[1]))
        joined[IMAGE], joined[VECTOR] = obs[IMAGE], numbers
        return joined


def at(candidates: Array, index: Array) -> Array:
    """Return the chosen candidate of each row, ``[N, P]``, of ``[N, K, P]``."""
    chosen: Array = candidates[np.arange(len(index)), index]
    return chosen
