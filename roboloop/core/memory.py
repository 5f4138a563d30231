"""Anonymous shared memory, and named arrays laid out in it."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from roboloop.core.types import Array

Columns: TypeAlias = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name -> shape and dtype."""

LINE_BYTES = 64
"""Arrays start on a cache line of their own: no false sharing, and BLAS results may depend on alignment."""


class SharedMemory:
    """A memory file without a name: gone with the last process that maps it, however that process ends."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.fd, self.num_bytes = fd, num_bytes
        self.map = mmap.mmap(fd, num_bytes)

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory:
        """Return new memory, all zero; it does not live in /dev/shm and is not limited by its size."""
        if not hasattr(os, "memfd_create"):
            return cls(-1, max(num_bytes, 1))  # private memory: enough for one process
        fd = os.memfd_create("roboloop", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(num_bytes, 1))
        return cls(fd, max(num_bytes, 1))

    def __del__(self) -> None:
        """Give the descriptor back; the mapping lives as long as arrays look at it."""
        if self.fd >= 0:
            os.close(self.fd)


class ByteLayout:
    """Named arrays one after another in one stretch of bytes."""

    def __init__(self, columns: Columns) -> None:
        self.columns = dict(columns)
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, (shape, dtype) in self.columns.items():
            self._offsets[name] = offset
            size = math.prod(shape) * np.dtype(dtype).itemsize
            offset += -(-size // LINE_BYTES) * LINE_BYTES
        self.num_bytes = offset

    def views(self, shared: SharedMemory, begin: int = 0) -> dict[str, Array]:
        """Return the arrays of the stretch that starts at ``begin``."""
        return {
            name: np.ndarray(shape, dtype, buffer=shared.map, offset=begin + self._offsets[name])
            for name, (shape, dtype) in self.columns.items()
        }
