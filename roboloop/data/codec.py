"""Lossless compression of observations and columns: reversible filters in numpy, then Zstandard."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import zstandard

from roboloop.core.errors import DataError, nearest
from roboloop.core.types import Array

CODEC = "zstd1-palette"
"""The only one so far; what it does is written down in docs/results/datasets.md. Another way gets another name."""
_LEVEL = 1
_MOST_COLOURS = 256
_COUNT_BYTES = 2
"""Of the number of colours before each picture plane."""
_SKIP = 8


class _Tools(threading.local):
    """Contexts of their own for every thread; the work itself is done without the interpreter's lock."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress

    @cached_property
    def index_of_colour(self) -> Array:
        """A table of all colours; of its pages only those that a colour falls into become memory."""
        return np.frombuffer(mmap.mmap(-1, 1 << 24), np.uint8)


class Codec:
    """Turns some arrays into bytes and back, bit for bit; the shapes and dtypes are kept elsewhere."""

    def __init__(self) -> None:
        self._tools = _Tools()

    def encode(self, arrays: Sequence[Array]) -> bytes:
        """Return arrays with equal first axes as one compressed piece."""
        planes = [self._filtered(plane) for array in arrays for plane in _planes(array)]
        return self._tools.compress(b"".join(planes))

    def _filtered(self, plane: Array) -> bytes:
        is_coloured = _is_picture(plane) and plane.shape[1] == 3
        return _filtered(plane, self._tools.index_of_colour if is_coloured else None)

    def decode(self, data: bytes, out: Sequence[Array]) -> None:
        """Write the arrays back into ``out``; raise ValueError if they are not what fits there."""
        planes = [plane for array in out for plane in _planes(array)]
        most = sum(plane.nbytes + (_COUNT_BYTES + 3 * _MOST_COLOURS) * _is_picture(plane) for plane in planes)
        try:
            plain = memoryview(self._tools.decompress(data, max_output_size=most))
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from None
        begin = 0
        for plane in planes:
            begin += _restore(plain[begin:], plane)
        if begin != len(plain):
            raise ValueError(f"it holds {len(plain)} bytes instead of {begin}")


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


def _filtered(plane: Array, index_of_colour: Array | None) -> bytes:
    """Return a plane's bytes in an order and form that compresses well.

    Numbers: column after column, first all first bytes, then all second bytes, ... Pictures begin with the number of
    their colours. If it is at most 256, as in games that draw from a palette, the colours follow, and every pixel is
    the number of one. Otherwise it is given as 0, and channel after channel follows: red and blue less green, and every
    pixel less its left neighbour, modulo 256.
    """
    if not _is_picture(plane):
        return plane.reshape(len(plane), -1).view(np.uint8).reshape(len(plane), -1, plane.itemsize).T.tobytes()
    if index_of_colour is not None and (found := _palette(_as_numbers(plane), index_of_colour)):
        colours, index = found
        palette = colours.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
        return _count(len(colours)) + palette.tobytes() + index.tobytes()
    x = plane.transpose(1, 0, 2, 3).copy()  # [C, R, H, W]
    if len(x) == 3:
        x[::2] -= x[1]
    x[..., 1:] -= x[..., :-1]
    return _count(0) + x.tobytes()


def _palette(pixels: Array, index_of_colour: Array) -> tuple[Array, Array] | None:
    """Return the colours in order and the number of each pixel's colour, unless there are too many."""
    colours = np.unique(pixels[::_SKIP])  # a few pictures show most colours, and to sort them all would take longer
    while len(colours) <= _MOST_COLOURS:
        index_of_colour[colours] = np.arange(len(colours), dtype=np.uint8)
        index = index_of_colour.take(pixels)
        others = pixels[colours.take(index, mode="clip") != pixels]
        if not len(others):
            return colours, index
        colours = np.union1d(colours, others)
    return None


def _as_numbers(pictures: Array) -> Array:
    """Return each pixel of ``[R, 3, H, W]`` as one number, in which the first channel is the lowest byte."""
    numbers = pictures[:, 2].astype(np.uint32)
    for channel in (1, 0):
        numbers <<= 8
        numbers |= pictures[:, channel]
    return numbers


def _count(colours: int) -> bytes:
    return colours.to_bytes(_COUNT_BYTES, "little")


def _restore(data: memoryview, plane: Array) -> int:
    """Write what ``_filtered`` made into a plane, which may be a field of records; return its length."""
    if not _is_picture(plane):
        item, rows = plane.itemsize, len(plane)
        by_row = np.ascontiguousarray(_bytes(data, 0, plane.nbytes).reshape(item, -1, rows).T)
        plane[...] = by_row.view(plane.dtype).reshape(plane.shape)
        return plane.nbytes
    rows, channels, height, width = plane.shape
    count = int.from_bytes(_bytes(data, 0, _COUNT_BYTES), "little")
    if count:
        palette = _bytes(data, _COUNT_BYTES, 3 * count).reshape(count, 3)
        begin = _COUNT_BYTES + palette.nbytes
        index = _bytes(data, begin, rows * height * width).reshape(rows, height, width)
        if channels != 3 or index.max(initial=0) >= count:
            raise ValueError("its pixels are not of its colours")
        for channel in range(channels):
            plane[:, channel] = palette[:, channel].take(index, mode="clip")
        return begin + index.nbytes
    x = _bytes(data, _COUNT_BYTES, plane.nbytes).reshape(channels, rows, height, width).copy()
    reach = 1
    while reach < width:  # sums over 2, 4, 8, ... neighbours: numpy adds whole rows, but accumulates one by one
        x[..., reach:] += x[..., :-reach]
        reach *= 2
    if channels == 3:
        x[::2] += x[1]
    plane[...] = x.transpose(1, 0, 2, 3)
    return _COUNT_BYTES + plane.nbytes


def _bytes(data: memoryview, begin: int, size: int) -> Array:
    if len(data) < begin + size:
        raise ValueError(f"it ends {begin + size - len(data)} bytes too early")
    return np.frombuffer(data, np.uint8, size, begin)
