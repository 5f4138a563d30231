"""Labels in shards: behind the parts of each episode stands what the index says of it.

A lost index is rebuilt from them. An append that was cut short has no label, and is no episode.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from roboloop.core.types import Array
from roboloop.data.aside import stretches
from roboloop.data.checks import check_memory
from roboloop.data.episodes import Facts, Schema
from roboloop.data.index import MOST_LABEL, Entry, entry_of

_HEADER = struct.Struct("<8sII")  # magic, bytes and crc32 of the JSON that follows
_MAGIC = b"\x89RLEPI\r\n"
_WINDOW_BYTES = 16 << 20
_READS = 4
"""How often bytes are read at most while labels are looked for in them: a stranger's may be full of false ones."""


def label_of(number: int, parts: Array, facts: Facts) -> bytes:
    """Return the label of an episode."""
    about = {"id": number, "parts": parts.tolist(), "facts": facts.to_data()}
    text = json.dumps(about, separators=(",", ":")).encode()
    return _HEADER.pack(_MAGIC, len(text), zlib.crc32(text)) + text


def table_of(parts: Sequence[bytes]) -> Array:
    """Return bytes and crc32 of each part."""
    return np.array([(len(part), zlib.crc32(part)) for part in parts], np.int64)


def is_sound(label: bytes) -> bool:
    """Say whether some bytes are a whole label."""
    if len(label) < _HEADER.size:
        return False
    magic, size, crc = _HEADER.unpack_from(label)
    text = label[_HEADER.size :]
    return bool(magic == _MAGIC and size == len(text) and zlib.crc32(text) == crc)


def find_episodes(fd: int, shard: int, span: tuple[int, int], schema: Schema) -> Iterator[Entry]:
    """Yield the whole episodes in some bytes of a shard, by their labels; all checksums fit."""
    begin, end = span
    filled = list(stretches(fd, begin, end))
    left = _READS * sum(stop - start for start, stop in filled) + _WINDOW_BYTES
    for at in (at for start, stop in filled for at in _magics(fd, start, stop)):
        if at < begin:  # within the episode before
            continue
        label = _label_at(fd, at, end)
        left -= len(label)
        entry = _entry_at(label, shard, at, schema) if is_sound(label) else None
        if entry is not None and begin <= entry.offset and entry.size <= left:
            left -= entry.size
            if read_parts(fd, entry) is not None:
                yield entry
                begin = entry.end
        if left <= 0:
            return


def _magics(fd: int, begin: int, end: int) -> Iterator[int]:
    """Yield where labels may begin."""
    while begin < end:
        window = os.pread(fd, min(_WINDOW_BYTES, end - begin), begin)
        at = window.find(_MAGIC)
        while at >= 0:
            yield begin + at
            at = window.find(_MAGIC, at + 1)
        if len(window) < len(_MAGIC) or begin + len(window) >= end:
            return
        begin += len(window) - len(_MAGIC) + 1


def _label_at(fd: int, at: int, end: int) -> bytes:
    header = os.pread(fd, _HEADER.size, at)
    size = _HEADER.size + (_HEADER.unpack(header)[1] if len(header) == _HEADER.size else end)
    return os.pread(fd, size, at) if size <= min(end - at, MOST_LABEL) else header


def _entry_at(label: bytes, shard: int, at: int, schema: Schema) -> Entry | None:
    """Return the episode before a label, if that says what can be true."""
    try:
        about = json.loads(label[_HEADER.size :])
        entry = entry_of({**about, "shard": shard, "offset": 0, "label": len(label)}, schema)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return entry._replace(offset=at - (entry.size - entry.label))


def read_parts(fd: int, entry: Entry) -> list[bytes] | None:
    """Return an episode's parts, or None where one of them is not what was written."""
    if entry.offset < 0 or entry.offset + entry.size - entry.label > os.fstat(fd).st_size:
        return None
    check_memory(2 * entry.size, f"episode {entry.id}")
    at, parts = entry.offset, []
    for size, crc in entry.parts.tolist():
        part = os.pread(fd, size, at)
        if len(part) != size or zlib.crc32(part) != crc:
            return None
        parts.append(part)
        at += size
    return parts
