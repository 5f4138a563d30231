"""Gymnasium's spaces in our terms: actions as columns of numbers, observations as one array or one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from roboloop.core.errors import ConfigError
from roboloop.core.fields import IMAGE, MASK, RESERVED, VECTOR
from roboloop.core.types import Array
from roboloop.envs.env import FLOAT

COLOURS = (1, 3, 4)
"""Channels that a picture usually has: grey, colour, colour with transparency or depth."""
_KNOWN = "use Box, Discrete, MultiDiscrete, Dict or Tuple"
Space = spaces.Space[Any]


class Columns(NamedTuple):
    """An action space as columns, depth first: bounds, and the number of choices where a column is one (else 0)."""

    low: Array
    high: Array
    choices: tuple[int, ...]


def _parts(space: Space) -> list[Space] | None:
    """Return what a tuple or dict is made of; none for anything else."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else None


def _choices(space: Space) -> tuple[Array, Array] | None:
    """Return the least value and the number of choices, each in the space's own shape; none if it has no choices."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start), np.asarray(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int64), np.full(space.shape, 2)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        return space.low.astype(np.int64), space.high.astype(np.int64) - space.low + 1
    return None


def columns(space: Space) -> Columns:
    """Return the columns of an action space."""
    parts = _parts(space)
    if parts is not None:
        inner = [columns(part) for part in parts]
        low, high = (np.concatenate([np.zeros(0), *(c[i] for c in inner)]) for i in (0, 1))
        return Columns(low, high, sum((c.choices for c in inner), ()))
    choices = _choices(space)
    if choices is not None:
        counts = [int(n) for n in choices[1].ravel()]
        return Columns(np.zeros(len(counts)), np.asarray(counts, float) - 1, tuple(counts))
    if isinstance(space, spaces.Box):
        return Columns(space.low.ravel(), space.high.ravel(), (0,) * space.low.size)
    raise ConfigError(f"actions {space} are neither numbers nor choices: {_KNOWN}")


def decoder(space: Space) -> Callable[[Array], Any]:
    """Return the function from valid columns to the space's own action."""
    parts = _parts(space)
    if parts is not None:
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else None
        inner = [decoder(part) for part in parts]
        cuts = np.cumsum([len(columns(part).low) for part in parts])[:-1]

        def nested(row: Array) -> Any:
            values = tuple(decode(piece) for decode, piece in zip(inner, np.split(row, cuts), strict=True))
            return values if keys is None else dict(zip(keys, values, strict=True))

        return nested
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda row: start + int(row[0])
    shape, dtype = space.shape or (), np.dtype(space.dtype or FLOAT)
    choices = _choices(space)
    if choices is not None:
        least = choices[0].ravel()
        return lambda row: (least + row.astype(np.int64)).astype(dtype).reshape(shape)
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (None, None)
    if dtype == FLOAT:
        return lambda row: row.reshape(shape)
    # a float32 bound may lie just outside the float64 one that it stands for
    return lambda row: np.clip(row.astype(dtype).reshape(shape), low, high)


def encode(space: Space, action: Any) -> Array:
    """Return the columns of the space's own action: what ``decoder`` undoes."""
    parts = _parts(space)
    if parts is not None:
        values = [action[key] for key in space.spaces] if isinstance(space, spaces.Dict) else action
        rows = [encode(part, value) for part, value in zip(parts, values, strict=True)]
        return np.concatenate([np.zeros(0, np.float32), *rows])
    choices = _choices(space)
    least = 0 if choices is None else choices[0].ravel()
    return (np.ravel(action) - least).astype(np.float32)


class Observations(NamedTuple):
    """How observations look to us, and the function that makes them so from the space's own and the info."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Any, Mapping[str, Any]], Array]


def _is_image(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Say where a picture of this shape, or the last three dims of a stack, has its channels.

    They are first or last, 1, 3 or 4 of them; other numbers are told by being fewer than rows and columns.
    """
    first, rows, last = shape[-3:]
    known = first in COLOURS, last in COLOURS
    if known[0] != known[1]:
        return known[1]
    is_first, is_last = first < min(rows, last), last < min(first, rows)
    if is_first == is_last:
        raise ConfigError(
            f"a uint8 observation of shape {shape} may have its channels first or last: make it [height, width, "
            "channels] with 1, 3 or 4 channels, or another dtype if it is no picture"
        )
    return is_last


def to_chw(image: Array) -> Array:
    """Return a picture, or a stack of them, with channels first."""
    if image.ndim == 2:
        return image[None]
    if has_channels_last(image.shape):
        image = np.moveaxis(image, -1, -3)
    return image.reshape(-1, *image.shape[-2:])


Get = Callable[[Any], Any]


def _leaves(space: Space, path: str = "", get: Get = lambda obs: obs) -> Iterator[tuple[str, Space, Get]]:
    """Yield name, space and getter of each part of a nested space; a mask is one part even where it is nested."""
    items: list[tuple[Any, Space]] | None = None
    if isinstance(space, spaces.Dict):
        items = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        items = list(enumerate(space.spaces))
    if items is None or path == MASK:
        yield path, space, get
        return
    for key, part in items:
        yield from _leaves(part, f"{path}.{key}" if path else str(key), lambda obs, key=key: get(obs)[key])  # type: ignore[misc]


def _flat(mask: Any) -> Array:
    """Return a mask as one vector; for several columns it may be a tuple or dict of masks."""
    parts = list(mask.values()) if isinstance(mask, Mapping) else mask
    if isinstance(parts, (tuple, list)):
        return np.concatenate([_flat(part) for part in parts]) if parts else np.zeros(0, bool)
    return np.ravel(np.asarray(parts)).astype(bool)


def legal(mask: Any, choices: tuple[int, ...]) -> Array:
    """Return which choice of which column is allowed; a column that allows nothing (at an end) allows everything."""
    flat, counts = _flat(mask), [n for n in choices if n]
    if len(flat) != sum(counts):
        raise ConfigError(f"an action mask of {len(flat)} entries does not fit actions with {sum(counts)} choices")
    for column in np.split(flat, np.cumsum(counts)[:-1]):
        if not column.any():  # a view: an all-false column would make a policy's probabilities NaN
            column[:] = True
    return flat


def observations(space: Space, choices: tuple[int, ...], mask_in_info: bool = False) -> Observations:
    """Return how to read a space: a picture and a box as they are, vectors joined, anything with both as a record."""
    if not space.is_np_flattenable:
        raise ConfigError(f"observations {space} have no fixed size: {_KNOWN}")
    if not spaces.flatdim(space):
        raise ConfigError(f"observations {space} hold nothing: give them at least one number")
    leaves = list(_leaves(space))
    mask_in_obs = any(choices) and any(name == MASK for name, *_ in leaves)
    images = [leaf for leaf in leaves if _is_image(leaf[1])]
    if mask_in_obs or mask_in_info or (images and images[0][0]):
        return _record(leaves, choices, mask_in_obs, mask_in_info)
    if images:
        shape = to_chw(np.zeros(space.shape or (), np.uint8)).shape
        return Observations(shape, np.dtype(np.uint8), lambda obs, info: to_chw(np.asarray(obs)))
    if isinstance(space, spaces.Box):
        dtype = np.dtype(np.uint8) if space.dtype == np.uint8 else FLOAT
        return Observations(tuple(space.shape), dtype, lambda obs, info: np.asarray(obs))
    size = spaces.flatdim(space)
    return Observations((size,), FLOAT, lambda obs, info: np.asarray(spaces.flatten(space, obs)))


def _record(
    leaves: list[tuple[str, Space, Get]], choices: tuple[int, ...], mask_in_obs: bool, mask_in_info: bool
) -> Observations:
    """Return records with one field per picture, one for all other numbers and one for the mask."""
    images = {name or IMAGE: (space, get) for name, space, get in leaves if _is_image(space)}
    masks = [get for name, _, get in leaves if name == MASK and mask_in_obs]
    numbers = [leaf for leaf in leaves if not _is_image(leaf[1]) and not (leaf[0] == MASK and mask_in_obs)]
    size = sum(spaces.flatdim(space) for _, space, _ in numbers)
    fields: list[tuple[str, Any, tuple[int, ...]]] = [(VECTOR, np.float32, (size,))] if size else []
    for name, (space, _) in images.items():
        if name in RESERVED:
            raise ConfigError(f"a picture may not be called {name!r}")
        fields.append((name, np.uint8, to_chw(np.zeros(space.shape or (), np.uint8)).shape))
    masked = mask_in_obs or mask_in_info
    dtype = np.dtype([*fields, *([(MASK, np.bool_, (sum(choices),))] if masked else [])])

    def read(obs: Any, info: Mapping[str, Any]) -> Array:
        record = np.zeros((), dtype)
        for name, (_, get) in images.items():
            record[name] = to_chw(np.asarray(get(obs)))
        if size:
            record[VECTOR] = np.concatenate(
                [np.ravel(np.asarray(spaces.flatten(space, get(obs)))) for _, space, get in numbers]
            )
        if masked:
            record[MASK] = legal(masks[0](obs) if masks else info.get(MASK, np.ones(sum(choices))), choices)
        return record

    return Observations((), dtype, read)
