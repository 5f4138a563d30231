"""Other people's files are data: HDF5 and npz are looked through before anything in them is read.

A file is refused if it leads to other files, holds objects in place of numbers, or says that it holds more bytes than
its compression can have packed into it.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as numpy_format

from roboloop.core.errors import DataError
from roboloop.core.files import open_regular
from roboloop.data.checks import check_memory

FAULTS = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What libraries raise over damaged files; some of it has many lines, some none."""
_MOST_RATIO, _SLACK_BYTES = 1100, 1 << 20
"""Deflate packs at most 1,032 bytes into one."""
_MOST_MEMBERS = 10_000
_NPY: Any = numpy_format  # it has no types
_PLAIN = "biufS"
"""Kinds of dtypes: numbers, and JSON as bytes."""


def reason(error: BaseException) -> str:
    """Return the first line of an error that has many, or its name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def size_of(path: Path) -> int:
    """Return the size of a file that a user named; what is not a regular file is a DataError."""
    try:
        with open_regular(path, follow=True) as file:
            return file.seek(0, 2)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None


def check_size(path: object, decoded: int, stored: int) -> None:
    """Refuse a file that says of itself what cannot be."""
    if decoded > _SLACK_BYTES + _MOST_RATIO * stored:
        raise DataError(f"{path} says that its {stored:,} bytes hold {decoded:,}: that cannot be")


def hdf5_arrays(file: Any, path: Path, stored: int) -> dict[str, Any]:
    """Return all arrays of an open HDF5 file by name, without following links."""
    import h5py

    arrays: dict[str, Any] = {}
    strangers: list[str] = []

    def see_link(name: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink):
            strangers.append(name)

    def see(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.shape is not None:
            arrays[name] = node
            if node.external or node.is_virtual:
                strangers.append(name)

    file.visititems_links(see_link)
    file.visititems(see)
    if strangers:
        raise DataError(f"{path}: {strangers[0]!r} leads to another file: it is not followed")
    check_size(path, sum(map(num_bytes, arrays.values())), stored)
    return arrays


def num_bytes(array: Any) -> int:
    """Return the bytes of an array, in memory or in a file."""
    return int(math.prod(array.shape) * array.dtype.itemsize)


def check_plain(path: object, name: str, dtype: np.dtype[Any]) -> None:
    """Refuse an array that is not of plain numbers or bytes."""
    if dtype.kind not in _PLAIN:
        raise DataError(f"{path} has {name!r} of {dtype}, which are no plain numbers")


def npz_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return all arrays of an npz file; they are in memory at once."""
    size = size_of(path)
    with open_regular(path, follow=True) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise ValueError(f"it has {len(members)} members")
        total = sum(member.file_size for member in members)
        check_size(path, total, size)
        check_memory(total, str(path))
        arrays = {}
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{member.filename} is packed in a way that numpy does not write")
            with archive.open(member) as packed:
                arrays[member.filename.removesuffix(".npy")] = _npy(packed, member)
        return arrays


def _npy(file: IO[bytes], member: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """Return one array; memory is taken for the bytes that are there, not for what its header says."""
    version = _NPY.read_magic(file)
    read = {(1, 0): _NPY.read_array_header_1_0, (2, 0): _NPY.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"{member.filename} is of an unknown version")
    shape, is_fortran, dtype = read(file)
    if dtype.kind not in _PLAIN:
        raise ValueError(f"{member.filename} holds {dtype}, which are no plain numbers")
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
        raise ValueError(f"{member.filename} of shape {shape} does not have that many bytes")
    array = np.frombuffer(file.read(), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")
