"""Batches of Gymnasium's observations and actions in our terms: ``envs/spaces.py`` for B environments at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from roboloop.core.fields import MASK, VECTOR
from roboloop.core.types import Array
from roboloop.envs.spaces import Observations, Space, columns, decoder, has_channels_last, observations

Read = Callable[[Any], Array]


class BatchReader:
    """Makes observations ``[B, ...]`` of a vector environment's own; arrays of other libraries are brought here."""

    def __init__(self, space: Space, num_envs: int, choices: tuple[int, ...]) -> None:
        self.one: Observations = observations(space, choices)
        self._space, self._num_envs = batch_space(space, num_envs), num_envs
        self._read = _fast(space, num_envs, self.one) or self._one_by_one

    def __call__(self, obs: Any) -> Array:
        """Return observations as an array of their own."""
        return self._read(as_numpy(obs))

    def _one_by_one(self, obs: Any) -> Array:
        """Read spaces that are more than boxes, such as choices and masks."""
        rows = [self.one.read(row, {}) for row in iterate(self._space, obs)]
        return np.stack(rows).astype(self.one.dtype)


def as_numpy(value: Any) -> Any:
    """Return nested arrays of any library as numpy's; tensors may be on a GPU."""
    if isinstance(value, Mapping):
        return {key: as_numpy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _fast(space: Space, num_envs: int, one: Observations) -> Read | None:
    """Return how whole batches of a box, or of a dict of boxes, are read; None for all other spaces."""
    if isinstance(space, spaces.Box):
        return _reader_of_box(space.shape, num_envs, one.dtype, one.shape)
    if not isinstance(space, spaces.Dict) or not all(isinstance(part, spaces.Box) for part in space.values()):
        return None
    if MASK in space.spaces:
        return None
    if one.dtype.names is None:
        return lambda obs: _joined([obs[key] for key in space], num_envs)
    pictures = {
        key: _reader_of_box(part.shape, num_envs, np.dtype(np.uint8), one.dtype[key].shape)
        for key, part in space.items()
        if key in one.dtype.names and key != VECTOR and part.shape is not None
    }
    numbers = [key for key in space if key not in pictures]

    def read(obs: Mapping[str, Any]) -> Array:
        record = np.empty(num_envs, one.dtype)
        for key, read_picture in pictures.items():
            record[key] = read_picture(obs[key])
        if numbers:
            record[VECTOR] = _joined([obs[key] for key in numbers], num_envs)
        return record

    return read


def _joined(parts: list[Any], num_envs: int) -> Array:
    flat = [np.asarray(part, np.float32).reshape(num_envs, -1) for part in parts]
    return np.concatenate(flat, axis=1)


def _reader_of_box(
    shape: tuple[int, ...], num_envs: int, dtype: np.dtype[Any], seen: tuple[int, ...]
) -> Callable[[Any], Array]:
    """Return how a box is read; pictures have their channels first."""
    moves = dtype == np.uint8 and len(shape) >= 3 and has_channels_last(shape)

    def read(obs: Any) -> Array:
        rows = np.moveaxis(obs, -1, -3) if moves else obs
        return np.array(rows, dtype).reshape(num_envs, *seen)

    return read


class BatchWriter:
    """Makes a vector environment's own actions of ours, ``[B, A]``; it gets the arrays of the library that it gives."""

    def __init__(self, space: Space) -> None:
        self._space = space
        found = columns(space)
        self._low, self._high = found.low.astype(np.float32), found.high.astype(np.float32)
        self._is_choice = np.asarray(found.choices) > 0
        self.like: Any = None
        """An array that the environment returned: a tensor wants tensors."""

    def __call__(self, action: Array) -> Any:
        """Return the nearest actions that the environment accepts."""
        action = np.minimum(np.maximum(np.asarray(action, np.float32), self._low), self._high)
        if self._is_choice.any():
            action = np.where(self._is_choice, np.rint(action), action)
        return self._given(_decoded(self._space, action))

    def _given(self, action: Any) -> Any:
        if isinstance(action, dict):
            return {key: self._given(part) for key, part in action.items()}
        if isinstance(action, tuple):
            return tuple(map(self._given, action))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(self.like, torch.Tensor):
            return torch.from_numpy(np.ascontiguousarray(action)).to(self.like.device)
        return action


def _decoded(space: Space, rows: Array) -> Any:
    """Return rows ``[B, A]`` of valid columns as a batch of the space's own actions."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = list(space.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
        cuts = np.cumsum([len(columns(part).low) for part in parts])[:-1]
        found = [_decoded(part, piece) for part, piece in zip(parts, np.split(rows, cuts, axis=1), strict=True)]
        return dict(zip(space, found, strict=True)) if isinstance(space, spaces.Dict) else tuple(found)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return np.clip(rows.reshape(len(rows), *space.shape).astype(space.dtype), space.low, space.high)
    decode = decoder(space)
    return np.stack([np.asarray(decode(row), space.dtype) for row in rows])
