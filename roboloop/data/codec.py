"""Lossless compression of observations and columns: reversible filters in numpy, then Zstandard."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import zstandard

from roboloop.core.errors import DataError, nearest
from roboloop.core.types import Array

CODEC = "zstd1"
"""The only one so far; what it does is written down in docs/results/datasets.md. Another way gets another name."""
_LEVEL = 1


class _Zstd(threading.local):
    """Contexts of their own for every thread; the work itself is done without the interpreter's lock."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


class Codec:
    """Turns some arrays into bytes and back, bit for bit; the shapes and dtypes are kept elsewhere."""

    def __init__(self) -> None:
        self._zstd = _Zstd()

    def encode(self, arrays: Sequence[Array]) -> bytes:
        """Return arrays with equal first axes as one compressed piece."""
        return self._zstd.compress(b"".join(_filtered(plane) for array in arrays for plane in _planes(array)))

    def decode(self, data: bytes, out: Sequence[Array]) -> None:
        """Write the arrays back into ``out``; raise ValueError if they are not what fits there."""
        size = sum(array.nbytes for array in out)
        try:
            plain = memoryview(self._zstd.decompress(data, max_output_size=size))
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from None
        if len(plain) != size:
            raise ValueError(f"it holds {len(plain)} bytes instead of {size}")
        begin = 0
        for array in out:
            for plane in _planes(array):
                _restore(plain[begin : begin + plane.nbytes], plane)
                begin += plane.nbytes


def codec_of(name: str) -> Codec:
    """Return the codec of a name."""
    check_codec(name)
    return Codec()


def check_codec(name: str) -> None:
    """Refuse a codec that this version does not know."""
    if name != CODEC:
        raise DataError(f"codec {name!r} is not known to this version{nearest(name, [CODEC])}")


def _planes(array: Array) -> Iterator[Array]:
    """Yield an array, or the fields of one of records."""
    if array.dtype.names is None:
        yield array
    else:
        yield from (array[name] for name in array.dtype.names)


def _is_picture(plane: Array) -> bool:
    return plane.dtype == np.uint8 and plane.ndim == 4


def _filtered(plane: Array) -> bytes:
    """Return a plane's bytes in an order and form that compresses well; all differences are modulo 256.

    Pictures: channel after channel; red and blue less green, and every pixel less its left neighbour. Numbers: column
    after column, first all first bytes, then all second bytes, ...
    """
    if not _is_picture(plane):
        return plane.reshape(len(plane), -1).view(np.uint8).reshape(len(plane), -1, plane.itemsize).T.tobytes()
    x = plane.transpose(1, 0, 2, 3).copy()  # [C, R, H, W]
    if len(x) == 3:
        x[::2] -= x[1]
    x[..., 1:] -= x[..., :-1]
    return x.tobytes()


def _restore(data: memoryview, plane: Array) -> None:
    """Write what ``_filtered`` made into a plane, which may be a field of records."""
    if not _is_picture(plane):
        item, rows = plane.itemsize, len(plane)
        by_row = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(item, -1, rows).T)
        plane[...] = by_row.view(plane.dtype).reshape(plane.shape)
        return
    rows, channels, height, width = plane.shape
    x = np.frombuffer(data, np.uint8).reshape(channels, rows, height, width).copy()
    reach = 1
    while reach < width:  # sums over 2, 4, 8, ... neighbours: numpy adds whole rows, but accumulates one by one
        x[..., reach:] += x[..., :-reach]
        reach *= 2
    if channels == 3:
        x[::2] += x[1]
    plane[...] = x.transpose(1, 0, 2, 3)
