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
    is_directory,
    is_regular,
    make_directory,
    open_append,
    open_new,
    open_regular,
    own_directory,
    remove,
    replace_durable,
    sync_directory,
    take_lock,
    temporary_name,
)
from roboloop.core.types import Array
from roboloop.data.aside import ASIDE, MARK, AsideMark, copy_aside, cut, lost_index, tails, unclaimed
from roboloop.data.codec import codec_of
from roboloop.data.episodes import COLUMNS, Episode, Facts, Schema, check_episode
from roboloop.data.index import (
    INDEX,
    SCHEMA,
    SHARDS,
    Entry,
    EpisodeCatalog,
    damaged_line,
    entry_of,
    line_of,
    lost_schema,
    read_index,
    read_schema,
    scan,
    shard_path,
)
from roboloop.data.labels import label_of, read_parts, table_of
from roboloop.data.mend import read_back, write_index

BLOCK_BYTES = 4096
_ADVICE = "all committed episodes are intact; free space and go on"
_OWN_NAMES = {SCHEMA, INDEX, MARK, SHARDS, ASIDE, "lock"}


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
        self._catalog = EpisodeCatalog()
        self._shards: dict[int, _Shard] = {}
        self._pending: list[bytes] = []  # index lines
        self._open: int | None = None  # the shard that is being filled
        self._shard_fd = self._index_fd = -1
        _refuse_foreign(directory)
        with self._disk_errors():
            make_directory(directory)
            own_directory(directory / SHARDS)
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
        if os.path.lexists(path):
            found = read_schema(self.directory)
            difference = found.difference(self.schema)
            if difference:
                raise DataError(f"dataset {self.directory} does not fit: its {difference}")
            self.schema = found
        else:
            data = json.dumps(self.schema.to_data(), indent=1).encode()
            Schema.from_data(json.loads(data))  # what cannot be read back is not begun
            replace_durable(path, data)
        self._schema_bytes = path.stat().st_size

    def _recover(self) -> None:
        """Read the index, take up whole episodes that were not committed yet, and cut what is torn."""
        path = self.directory / INDEX
        remove(temporary_name(path))
        data, mark = read_index(self.directory), AsideMark.read(self.directory)
        found = scan(data, self.schema)
        if found.damaged:
            raise DataError(damaged_line(self.directory, found.damaged[0]))
        if mark is not None and not mark.fits(data):
            raise DataError(lost_index(self.directory))
        self._catalog.apply(found.records)
        self._index_fd = open_append(path)
        sync_directory(self.directory)
        self._mark = AsideMark(found.size, zlib.crc32(data[: found.size]))
        if found.size < len(data):
            os.ftruncate(self._index_fd, found.size)
        entries, known = self._catalog.entries, range(self._catalog.next_id)
        for entry in read_back(
            self.directory, tails(self.directory, entries.values()), self.schema, self._catalog, known
        ):
            self._log(entry.to_record(), entry)
        for entry in entries.values():
            shard = self._shards.setdefault(entry.shard, _Shard())
            shard.size = max(shard.size, entry.end)
            self._settle(entry)
        if mark is None:  # the index may have been lost, so that what is left may have been committed
            for span in unclaimed(self.directory, entries.values()):
                copy_aside(self.directory, shard_path(self.directory, span.shard), span.begin, span.end)
        self.commit()
        for span in tails(self.directory, entries.values()):
            cut(shard_path(self.directory, span.shard), span.begin)

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
        number, table = self._catalog.next_id, table_of(parts)
        label = label_of(number, table, facts)
        entry = Entry(number, 0, 0, table, facts, len(label))
        try:
            entry_of(entry.to_record(), self.schema)
        except (ValueError, OverflowError) as error:  # what could not be read back is not stored
            raise DataError(f"episode {facts.episode} of stream {facts.env} cannot be stored: {error}") from None
        shard, offset = self._write([*parts, label])
        entry = entry._replace(shard=shard, offset=offset)
        self._log(entry.to_record(), entry)
        self._settle(entry)
        return entry.id

    def _log(self, record: dict[str, Any], entry: Entry | None = None) -> None:
        self._pending.append(line_of(record))
        self._catalog.apply([{**record, "entry": entry}])

    def _write(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Append to the open shard, or to a new one where that is full; return the shard and where in it."""
        size = sum(map(len, parts))
        if self._open is not None and self._shards[self._open].size + size > self._shard_bytes:
            self._seal()
        with self._disk_errors():
            if self._open is None:
                number = self._catalog.next_shard
                self._shard_fd = open_new(shard_path(self.directory, number))
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
            if not is_directory(path := shard_path(self.directory, number)):
                path.unlink(missing_ok=True)
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
        self.relocate(sorted(self._shards[number].ids))
        damaged = sorted(self._shards[number].ids)
        if damaged:
            self.note({"dropped_as_damaged": damaged})
            self.keep_aside(damaged)
        self.evict(damaged)
        self._unlink_dead()

    def keep_aside(self, ids: Collection[int]) -> None:
        """Copy what there is of some episodes into ``aside/``."""
        for entry in [self._catalog.entries[number] for number in ids]:
            if is_regular(file := shard_path(self.directory, entry.shard)):
                copy_aside(self.directory, file, entry.offset, entry.end)

    def relocate(self, ids: Collection[int]) -> None:
        """Write episodes again elsewhere, with new labels; those whose bytes are damaged stay where they are."""
        for entry in [self._catalog.entries[number] for number in ids]:
            with contextlib.suppress(FileNotFoundError), open_regular(shard_path(self.directory, entry.shard)) as file:
                parts = read_parts(file.fileno(), entry)
                if parts is None:
                    continue
                label = label_of(entry.id, entry.parts, entry.facts)
                shard, offset = self._write([*parts, label])
                self._leave(entry)
                place = {"shard": shard, "offset": offset, "label": len(label)}
                self._log({"kind": "move", "id": entry.id, **place})
                self._settle(self._catalog.entries[entry.id])

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
            lines = b"".join(self._pending)
            size = append_durable(self._index_fd, self._mark.size, lines)
            self._mark = AsideMark(size, zlib.crc32(lines, self._mark.crc32))
            self._pending.clear()
            self._mark.write(self.directory)
        if self._catalog.num_records > 2 * len(self._catalog.entries) + 1000:
            self._rewrite_index()

    def _rewrite_index(self) -> None:
        """Write the index anew without its dead; readers notice that it is another file."""
        path = self.directory / INDEX
        with self._disk_errors():
            self._mark = write_index(self.directory, self._catalog.records())
        os.close(self._index_fd)
        self._index_fd = open_append(path)
        self._catalog.num_records = len(self._catalog.entries) + len(self._catalog.notes) + 1

    @property
    def disk_bytes(self) -> int:
        """All that the directory takes on disk, in whole blocks, with the lines that are not written yet."""
        pending = sum(map(len, self._pending))
        sizes = [self._schema_bytes, self._mark.size + pending, 1, 1, *(shard.size for shard in self._shards.values())]
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


def _refuse_foreign(directory: Path) -> None:
    """Leave alone what is not ours; a dataset whose creation was cut short has only our names in it."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is not a directory")
    if directory.is_dir() and not os.path.lexists(directory / SCHEMA):
        if lost := lost_schema(directory):
            raise DataError(lost)
        names = {path.name for path in directory.iterdir()} - _OWN_NAMES - {temporary_name(directory / SCHEMA).name}
        if names:
            raise DataError(f"{directory} exists and is not a dataset: it holds {sorted(names)[0]!r}")
