"""Bytes of a dataset that no index line refers to: left by a crash, or of episodes whose lines are lost.

``index.mark`` says how long the index was at the last commit, and its checksum. An index that does not fit has lost
lines, and the bytes that they referred to are recorded episodes. Nobody cuts them: ``roboloop dataset repair`` reads
back what is whole and copies the rest to ``aside/``.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from roboloop.core.errors import DataError
from roboloop.core.files import open_new, open_regular, own_directory, read_json, replace_atomic, sync_directory
from roboloop.data import checks
from roboloop.data.index import INDEX, Entry, shard_files

ASIDE, MARK = "aside", "index.mark"
_COPY_BYTES = 1 << 20


class AsideMark(NamedTuple):
    """How long the index was at a commit, and the checksum of all of it."""

    size: int = 0
    crc32: int = 0

    @classmethod
    def read(cls, directory: Path) -> AsideMark | None:
        """Return the mark of a dataset; none where there is none: of an older version, or not committed yet."""
        try:
            data = checks.mapping(read_json(directory / MARK))
            return cls(checks.integer(data["bytes"]), checks.integer(data["crc32"]))
        except (DataError, KeyError, ValueError):
            return None

    def fits(self, index: bytes) -> bool:
        """Say whether an index holds all that was committed."""
        return len(index) >= self.size and zlib.crc32(memoryview(index)[: self.size]) == self.crc32

    def write(self, directory: Path) -> None:
        """Keep the mark; an older one is still true, so that it need not be durable."""
        replace_atomic(directory / MARK, json.dumps({"bytes": self.size, "crc32": self.crc32}).encode())


def lost_index(directory: Path) -> str:
    """Return what to say of an index that is not the one that was committed."""
    return (
        f"{directory / INDEX} is damaged: lines that were committed are missing or changed; "
        f"roboloop dataset repair {directory} rebuilds it"
    )


class Span(NamedTuple):
    """Some bytes of a shard."""

    shard: int
    begin: int
    end: int


def unclaimed(directory: Path, entries: Iterable[Entry]) -> list[Span]:
    """Return the bytes of shards that no entry refers to, in order."""
    claimed: dict[int, list[tuple[int, int]]] = {}
    for entry in entries:
        claimed.setdefault(entry.shard, []).append((entry.offset, entry.end))
    found = []
    for shard, file in shard_files(directory).items():
        at, size = 0, file.stat().st_size
        for begin, end in sorted([*claimed.get(shard, []), (size, size)]):
            if at < min(begin, size):
                found.append(Span(shard, at, min(begin, size)))
            at = max(at, end)
    return found


def tails(directory: Path, entries: Iterable[Entry]) -> list[Span]:
    """Return the bytes of shards behind all that entries refer to: what was appended last, and shards of nobody."""
    ends: dict[int, int] = {}
    for entry in entries:
        ends[entry.shard] = max(ends.get(entry.shard, 0), entry.end)
    sizes = {shard: file.stat().st_size for shard, file in shard_files(directory).items()}
    return [Span(s, ends.get(s, 0), size) for s, size in sizes.items() if size > ends.get(s, 0) or s not in ends]


def copy_aside(directory: Path, file: Path, begin: int, end: int) -> None:
    """Copy some bytes of a file into ``aside/``; they are durable there when this returns."""
    aside, number = own_directory(directory / ASIDE), 0
    while os.path.lexists(target := aside / f"{file.stem}-{begin}-{number:03d}{file.suffix}"):
        number += 1
    with open_regular(file) as source, os.fdopen(open_new(target), "wb", buffering=0) as sink:
        for at, stop in stretches(source.fileno(), begin, end):
            sink.truncate(at - begin)  # a hole stays one: it may be a stranger's, of any size
            while at < stop and (data := os.pread(source.fileno(), min(_COPY_BYTES, stop - at), at)):
                at += os.write(sink.fileno(), data)
        sink.truncate(end - begin)
        os.fsync(sink.fileno())
    sync_directory(aside)


def stretches(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where in some bytes of a file there is data; the rest are holes, which take no room and read as zeros."""
    while begin < end:
        try:
            begin = os.lseek(fd, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # none follows
                return
            raise
        stop = min(end, os.lseek(fd, begin, os.SEEK_HOLE))
        if begin < stop:
            yield begin, stop
        begin = max(stop, begin + 1)


def cut(file: Path, begin: int) -> None:
    """Cut a shard behind all that is referred to; one of which nothing is left goes."""
    if begin:
        os.truncate(file, begin)
    else:
        file.unlink()
