"""Columns of a journal on their way to disk: pictures compressed, records as bytes, all others as they are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.state import dtype_from_data, dtype_to_data
from roboloop.core.types import Array
from roboloop.data.codec import CODEC, Codec, codec_of

PIECE_ROWS = 64
"""Rows that are compressed together: few enough that a long column needs no second memory of its size."""

Notes = dict[str, dict[str, Any]]
"""By column: what it takes to read it again, as plain data."""


def pack(columns: Mapping[str, Array]) -> tuple[dict[str, Array], Notes]:
    """Return columns as they are stored, and notes of those that were packed."""
    packed: dict[str, Array] = {}
    notes: Notes = {}
    codec = Codec()
    for name, column in columns.items():
        if column.dtype.names is None and not (column.dtype == np.uint8 and column.ndim == 4):
            packed[name] = column
            continue
        begins = range(0, len(column), PIECE_ROWS)
        pieces = [codec.encode([column[begin : begin + PIECE_ROWS]]) for begin in begins]
        packed[name] = np.frombuffer(b"".join(pieces), np.uint8)
        described = {"codec": CODEC, "dtype": dtype_to_data(column.dtype), "shape": list(column.shape)}
        notes[name] = {**described, "piece_rows": PIECE_ROWS, "piece_bytes": [len(piece) for piece in pieces]}
    return packed, notes


def unpack(packed: Mapping[str, Array], notes: Notes) -> dict[str, Array]:
    """Return what ``pack`` was given, bit for bit."""
    return {name: _column(column, notes[name]) if name in notes else column for name, column in packed.items()}


def _column(packed: Array, note: dict[str, Any]) -> Array:
    codec, data, rows = codec_of(note["codec"]), packed.tobytes(), note["piece_rows"]
    column = np.empty(note["shape"], dtype_from_data(note["dtype"]))
    ends = np.cumsum([0, *note["piece_bytes"]]).tolist()
    for i, (begin, end) in enumerate(pairwise(ends)):
        try:
            codec.decode(data[begin:end], [column[i * rows : (i + 1) * rows]])
        except ValueError as error:
            raise DataError(f"a packed column of the journal is damaged: {error}") from error
    return column
