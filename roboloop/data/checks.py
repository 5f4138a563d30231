"""Bounds for what a file says of itself: it may be a stranger's, and memory is taken only for what is plausible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.resources import free_memory_bytes
from roboloop.core.state import dtype_from_data, dtype_to_data

LARGEST = 1 << 53
"""Of an integer in JSON that every reader takes as the same number."""
MOST_CHUNK_ROWS = 1 << 20
_MOST_DIMS, _MOST_LISTED, _MOST_TEXT = 8, 1 << 16, 4096
_MOST_ROW_BYTES, _MOST_CHUNK_BYTES = 64 << 20, 1 << 32
_MOST_RATIO, _SLACK_BYTES = 1 << 17, 1 << 20
"""Bytes that one stored byte may become: Zstandard reaches 32,768, a picture of one colour three times that."""
_ASK_BYTES = 64 << 20
"""What takes less memory than this is not asked about."""


def integer(value: Any, least: int = 0, most: int = LARGEST) -> int:
    """Return an integer within bounds; anything else is a ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is not an integer from {least} to {most}")
    return value


def real(value: Any) -> float:
    """Return a number, where null is NaN; anything else is a ValueError."""
    if value is None:
        return math.nan
    if type(value) is float or (type(value) is int and abs(value) <= LARGEST):
        return float(value)
    raise ValueError(f"{_shown(value)} is not a number")


def text(value: Any, most: int = _MOST_TEXT) -> str:
    """Return a text that can be encoded; anything else is a ValueError."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{_shown(value)} is not a text of at most {most} characters")
    value.encode()  # a lone surrogate is no text
    return value


def listed(value: Any, most: int = _MOST_LISTED) -> list[Any]:
    """Return a list that is not too long; anything else is a ValueError."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{_shown(value)} is not a list of at most {most}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return an object of JSON; anything else is a ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is not an object")
    return value


def spec_data(data: Any) -> dict[str, Any]:
    """Return the data of a spec if every field has the type and size that it may have; else raise ValueError."""
    spec = mapping(data)
    shape = [integer(n, 1) for n in listed(spec["obs_shape"], _MOST_DIMS)]
    size = _plain_dtype(spec["obs_dtype"]).itemsize * math.prod(shape)
    if size > _MOST_ROW_BYTES:
        raise ValueError(f"an observation of {size:,} bytes")
    low, high = ([_bound(x) for x in listed(spec[name])] for name in ("action_low", "action_high"))
    choices = [integer(n, 0, 1 << 24) for n in listed(spec.get("action_choices", []))]
    if not low or len(low) != len(high) or len(choices) not in (0, len(low)):
        raise ValueError(f"actions with {len(low)} lower and {len(high)} upper bounds and {len(choices)} choices")
    integer(spec["max_episode_steps"], 1)
    for name, value in mapping(spec.get("protocol", {})).items():
        text(name)
        if not isinstance(value, str | int | float | bool | None):
            raise ValueError(f"protocol.{name} is not plain")
    for name in listed(spec.get("tasks", [])):
        text(name)
    if not isinstance(spec.get("one_task_each", False), bool):
        raise ValueError("one_task_each is neither true nor false")
    return spec


def _plain_dtype(data: Any) -> np.dtype[Any]:
    """Return a dtype of plain numbers, or of a record of them; anything else is a ValueError."""
    if isinstance(data, str):
        kinds = [data]
    else:
        fields = [listed(field, 3) for field in listed(data, 1024)]
        kinds = [text(kind) for _, kind, _ in fields]
        for name, _, shape in fields:
            if not text(name).isprintable() or not name or "/" in name or name.startswith("."):
                raise ValueError(f"a field {_shown(name)}")
            if math.prod(integer(n, 1) for n in listed(shape, _MOST_DIMS)) > _MOST_ROW_BYTES:
                raise ValueError(f"a field {name!r} of shape {shape}")
        if not fields:
            raise ValueError("a record without fields")
    for kind in kinds:
        if len(kind) not in (3, 4) or kind[0] not in "<>|" or kind[1] not in "biuf" or not kind[2:].isdecimal():
            raise ValueError(f"{_shown(kind)} is not a plain number")
    try:
        dtype = dtype_from_data(data)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if dtype_to_data(dtype) != data:
        raise ValueError(f"{_shown(data)} is not a dtype")
    return dtype


def _bound(value: Any) -> float:
    """Return a bound of actions, which may be infinite but not NaN."""
    if not -math.inf <= real(value) <= math.inf:
        raise ValueError(f"{_shown(value)} is not a bound of actions")
    return float(value)


def check_chunk(rows: int, row_bytes: int) -> None:
    """Raise ValueError where a chunk of observations is larger than one may be."""
    integer(rows, 1, MOST_CHUNK_ROWS)
    if rows * row_bytes > _MOST_CHUNK_BYTES:
        raise ValueError(f"a chunk of {rows * row_bytes:,} bytes")


def check_ratio(decoded: int, stored: int, parts: int) -> None:
    """Raise ValueError where so many stored bytes in so many parts cannot be so many decoded ones."""
    slack = _SLACK_BYTES * parts
    if decoded > slack + _MOST_RATIO * stored or stored > slack + 2 * decoded:
        raise ValueError(f"{stored:,} stored bytes cannot be {decoded:,}")


def check_memory(num_bytes: int, what: str) -> None:
    """Refuse what would not fit into memory before any is taken for it."""
    if num_bytes > _ASK_BYTES and num_bytes > (free := free_memory_bytes()):
        raise DataError(f"{what} takes {num_bytes / 1e9:,.1f} GB of memory, {free / 1e9:,.1f} GB are free")


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a number that is too large"  # one of 5,000 digits cannot even be shown
    return type(value).__name__ if isinstance(value, dict | list) else repr(value)[:60]
