"""The writer of a dataset: episodes into shards, then into the index, in the order that a crash cannot break."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import (
    append_durable,
    disk_errors,
    replace_durable,
    sync_directory,
    take_lock,
    temporary_name,
)
from roboloop.core.types import Array
from roboloop.data.codec import codec_of
from roboloop.data.episodes import COLUMNS, Episode, Facts, Schema, check_episode
from roboloop.data.index import (
    INDEX,
    SCHEMA,
    SHARDS,
    Catalog,
    Entry,
    damaged_line,
    line_of,
    read_schema,
    scan,
    shard_path,
)

BLOCK_BYTES = 4096
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_ADVICE = "all committed episodes are intact; free space and go on"
_OWN_NAMES = {SCHEMA, INDEX, SHARDS, "lock"}


@dataclass
class _Shard:
    """What the writer knows of a shard."""

    size: int = 0
    live_bytes: int = 0
    ids: set[int] = field(default_factory=set)
    """Of its live episodes."""

    @property
    def dead_bytes(self) -> int:
        return self.size - self.live_bytes


class StoreWriter:
    """Appends to a dataset, evicts from it and keeps it small; the only one who may at a time.

    Shard bytes are fsynced before the index lines that refer to them are written, and those before anything is
    unlinked: whenever the process dies, the index describes whole episodes, and at most what was not committed is lost.
    """

    def __init__(self, directory: Path, schema: Schema, shard_bytes: int = 64 << 20) -> None:
        self.directory = directory
        self.schema = schema
        self._shard_bytes = shard_bytes
        self._codec = codec_of(schema.codec)
        self._catalog = Catalog()
        self._shards: dict[int, _Shard] = {}
        self._pending: list[bytes] = []  # index lines
        self._open: int | None = None  # the shard that is being filled
        self._shard_fd = self._index_fd = -1
        _refuse_foreign(directory)
        with self._disk_errors():
            (directory / SHARDS).mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = take_lock(directory, "written by")
            try:
                self._create_or_join()
                self._recover()
            except BaseException:
                self._release()
                raise

    def _disk_errors(self) -> contextlib.AbstractContextManager[None]:
        return disk_errors(f"dataset {self.directory}", _ADVICE)

    def _create_or_join(self) -> None:
        path = self.directory / SCHEMA
        if path.exists():
            found = read_schema(self.directory)
            difference = found.difference(self.schema)
            if difference:
                raise DataError(f"dataset {self.directory} does not fit: its {difference}")
            self.schema = found
        else:
            replace_durable(path, json.dumps(self.schema.to_data(), indent=1).encode())
        self._schema_bytes = path.stat().st_size

    def _recover(self) -> None:
        """Read the index, cut its torn tail and the shard bytes that no line refers to."""
        path = self.directory / INDEX
        temporary_name(path).unlink(missing_ok=True)
        data = path.read_bytes() if path.exists() else b""
        found = scan(data)
        if found.damaged:
            raise DataError(damaged_line(self.directory, found.damaged[0]))
        self._catalog.apply(found.records)
        self._index_fd = os.open(path, _APPEND, 0o644)
        sync_directory(self.directory)
        self._index_bytes = found.size
        if found.size < len(data):
            os.ftruncate(self._index_fd, found.size)
        for entry in self._catalog.entries.values():
            shard = self._shards.setdefault(entry.shard, _Shard())
            shard.live_bytes += entry.size
            shard.ids.add(entry.id)
            shard.size = max(shard.size, entry.offset + entry.size)
        for file in (self.directory / SHARDS).iterdir():
            number = int(file.stem) if file.suffix == ".bin" and file.stem.isdecimal() else -1
            if number >= 0 and number not in self._shards:
                file.unlink()
            elif number >= 0 and file.stat().st_size > self._shards[number].size:
                os.truncate(file, self._shards[number].size)

    def append(self, episode: Episode, facts: Facts) -> int:
        """Add an episode and return its id; it is durable, and visible to readers, after the next ``commit``."""
        check_episode(episode, facts, self.schema)
        columns = [np.ascontiguousarray(getattr(episode, name)) for name in COLUMNS]
        rows = self.schema.chunk_rows
        chunks = [episode.obs[begin : begin + rows] for begin in range(0, len(episode.obs), rows)]
        encode = self._codec.encode
        return self.adopt([encode(columns), *(encode([np.ascontiguousarray(chunk)]) for chunk in chunks)], facts)

    def adopt(self, parts: Sequence[bytes], facts: Facts) -> int:
        """Add an episode whose parts are already encoded as this dataset encodes them."""
        table = np.array([(len(part), zlib.crc32(part)) for part in parts], np.int64)
        shard, offset = self._write(parts)
        entry = Entry(self._catalog.next_id, shard, offset, table, facts)
        self._log(entry.to_record())
        self._settle(entry)
        return entry.id

    def _log(self, record: dict[str, Any]) -> None:
        self._pending.append(line_of(record))
        self._catalog.apply([record])

    def _write(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Append to the open shard, or to a new one where that is full; return the shard and where in it."""
        size = sum(map(len, parts))
        if self._open is not None and self._shards[self._open].size + size > self._shard_bytes:
            self._seal()
        with self._disk_errors():
            if self._open is None:
                number = self._catalog.next_shard
                self._shard_fd = os.open(shard_path(self.directory, number), _APPEND | os.O_EXCL, 0o644)
                self._open = number
                self._shards[number] = _Shard()
                sync_directory(self.directory / SHARDS)
            shard = self._shards[self._open]
            offset = shard.size
            shard.size = append_durable(self._shard_fd, offset, *parts, sync=False)
        return self._open, offset

    def _settle(self, entry: Entry) -> None:
        shard = self._shards[entry.shard]
        shard.live_bytes += entry.size
        shard.ids.add(entry.id)

    def _seal(self) -> None:
        """Close the open shard; its bytes are durable from here on."""
        if self._open is None:
            return
        with self._disk_errors():
            os.fsync(self._shard_fd)
        os.close(self._shard_fd)
        number, self._open, self._shard_fd = self._open, None, -1
        self._catalog.next_shard = max(self._catalog.next_shard, number + 1)
        self._unlink_dead()

    def evict(self, ids: Collection[int]) -> None:
        """Drop episodes; shards without a live one are unlinked at once, others shrink by ``compact``."""
        gone = sorted(set(map(int, ids)))
        for number in gone:
            if number not in self._catalog.entries:
                raise DataError(f"dataset {self.directory} has no live episode {number}")
        for number in gone:
            self._leave(self._catalog.entries[number])
        if gone:
            self._log({"kind": "evict", "ids": gone})
            self._unlink_dead()

    def _leave(self, entry: Entry) -> None:
        shard = self._shards[entry.shard]
        shard.live_bytes -= entry.size
        shard.ids.discard(entry.id)

    def _unlink_dead(self) -> None:
        dead = [number for number, shard in self._shards.items() if not shard.ids and number != self._open]
        if dead:
            self.commit()  # first the index forgets them
        for number in dead:
            shard_path(self.directory, number).unlink(missing_ok=True)
            del self._shards[number]

    def compact(self, max_bytes: int) -> None:
        """Rewrite the deadest shards until the dataset fits or nothing dead is left.

        Bytes are copied as they are. While it is at work it needs room for the live bytes of one shard more.
        """
        while self.disk_bytes > max_bytes:
            worst = max(
                self._shards, key=lambda n: self._shards[n].dead_bytes / max(1, self._shards[n].size), default=-1
            )
            if worst < 0 or not self._shards[worst].dead_bytes:
                return
            if worst == self._open:
                self._seal()
            if worst in self._shards:
                self._empty(worst)

    def _empty(self, number: int) -> None:
        """Move the live episodes of a shard elsewhere; one whose bytes are damaged is dropped, and that is noted."""
        with contextlib.suppress(FileNotFoundError), open(shard_path(self.directory, number), "rb") as file:
            for episode in sorted(self._shards[number].ids):
                entry = self._catalog.entries[episode]
                file.seek(entry.offset)
                parts = [file.read(size) for size in entry.parts[:, 0].tolist()]
                if [zlib.crc32(part) for part in parts] != entry.parts[:, 1].tolist():
                    continue
                shard, offset = self._write(parts)
                self._leave(entry)
                self._log({"kind": "move", "id": episode, "shard": shard, "offset": offset})
                self._settle(self._catalog.entries[episode])
        damaged = sorted(self._shards[number].ids)
        if damaged:
            self.note({"dropped_as_damaged": damaged})
        self.evict(damaged)
        self._unlink_dead()

    def note(self, note: dict[str, Any]) -> None:
        """Put a line of plain data into the index, such as where a run was resumed."""
        self._log({"kind": "note", "note": note})

    def commit(self) -> None:
        """Make everything durable, and visible to readers."""
        if not self._pending:
            return
        with self._disk_errors():
            if self._open is not None:
                os.fsync(self._shard_fd)
            self._index_bytes = append_durable(self._index_fd, self._index_bytes, b"".join(self._pending))
        self._pending.clear()
        if self._catalog.num_records > 2 * len(self._catalog.entries) + 1000:
            self._rewrite_index()

    def _rewrite_index(self) -> None:
        """Write the index anew without its dead; readers notice that it is another file."""
        path = self.directory / INDEX
        with self._disk_errors():
            replace_durable(path, b"".join(map(line_of, self._catalog.records())))
        os.close(self._index_fd)
        self._index_fd = os.open(path, _APPEND)
        self._index_bytes = path.stat().st_size
        self._catalog.num_records = len(self._catalog.entries) + len(self._catalog.notes) + 1

    @property
    def disk_bytes(self) -> int:
        """All that the directory takes on disk, in whole blocks, with the lines that are not written yet."""
        pending = sum(map(len, self._pending))
        sizes = [self._schema_bytes, self._index_bytes + pending, 1, *(shard.size for shard in self._shards.values())]
        return sum(-(-size // BLOCK_BYTES) for size in sizes) * BLOCK_BYTES + 2 * BLOCK_BYTES

    @property
    def live(self) -> dict[str, Array]:
        """The live episodes, committed or not: arrays by the names of ``Facts``, with ``id`` and ``bytes``."""
        return self._catalog.columns()

    def close(self) -> None:
        """Commit and let others write."""
        try:
            self.commit()
        finally:
            self._release()

    def _release(self) -> None:
        for fd in (self._shard_fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._shard_fd = self._index_fd = -1
        self._lock.close()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def drop_damaged_lines(directory: Path) -> list[int]:
    """Write the index anew without lines that are not sound, and return their numbers; nobody else may write."""
    with take_lock(directory, "written by"):
        path = directory / INDEX
        found = scan(path.read_bytes() if path.exists() else b"")
        if found.damaged:
            replace_durable(path, b"".join(map(line_of, found.records)))
        return found.damaged


def _refuse_foreign(directory: Path) -> None:
    """Leave alone what is not ours; a dataset whose creation was cut short has only our names in it."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is not a directory")
    if directory.is_dir() and not (directory / SCHEMA).exists():
        names = {path.name for path in directory.iterdir()} - _OWN_NAMES - {temporary_name(directory / SCHEMA).name}
        if names:
            raise DataError(f"{directory} exists and is not a dataset: it holds {sorted(names)[0]!r}")
