"""The reader of a dataset: a consistent view of the live episodes, also while a writer adds, evicts and moves them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from roboloop.core.errors import DataError, nearest
from roboloop.core.files import is_regular, open_regular
from roboloop.core.types import Array
from roboloop.data.aside import AsideMark, lost_index
from roboloop.data.checks import check_memory
from roboloop.data.codec import codec_of
from roboloop.data.episodes import COLUMNS, Episode, Schema
from roboloop.data.index import (
    INDEX,
    MOST_INDEX_BYTES,
    SCHEMA,
    Entry,
    EpisodeCatalog,
    damaged_line,
    lost_schema,
    read_schema,
    scan,
    shard_path,
)
from roboloop.data.labels import is_sound

_MAX_OPEN_SHARDS = 512
_ATTEMPTS = 20
LABEL_FAULT = "the checksum of its label differs"


class Dataset:
    """Episodes by row; rows change only by ``refresh``. Never writes, and many may read at once."""

    def __init__(self, directory: Path, schema: Schema) -> None:
        self._index: BinaryIO | None = None
        self._index_bytes = 0
        self._shards = _OpenShards(directory)
        self.directory = directory
        self.schema = schema
        self.table: dict[str, Array] = {}
        """One row per live episode: the fields of ``Facts``, ``id`` and ``bytes``."""
        self._codec = codec_of(schema.codec)
        self._catalog = EpisodeCatalog()
        self._entries: list[Entry] = []

    @classmethod
    def open(cls, directory: Path, whole: bool = True) -> Dataset:
        """Open a dataset, finished or still growing; an index that lost lines is a DataError, unless not ``whole``."""
        if not os.path.lexists(directory / SCHEMA) and directory.parent.is_dir() and not lost_schema(directory):
            siblings = [str(path.parent) for path in directory.parent.glob(f"*/{SCHEMA}")]
            raise DataError(f"{directory} is not a dataset{nearest(str(directory), siblings)}")
        dataset, mark = cls(directory, read_schema(directory)), AsideMark.read(directory)
        dataset.refresh()
        # the mark is written after the index: one that is the same before and after belongs to what was read
        if whole and mark and mark.size > dataset._index_bytes and mark == AsideMark.read(directory):
            raise DataError(lost_index(directory))
        return dataset

    def refresh(self) -> bool:
        """Take up what was committed and evicted since the last time; say whether there was anything."""
        changed = False
        for _ in range(_ATTEMPTS):
            more = self._read_index()
            changed = changed or more
            complete = self._shards.keep({entry.shard for entry in self._catalog.entries.values()})
            # a shard that has gone was evicted or moved meanwhile, and the index says so by now; else it is damage
            if complete or not (more or self._index_grew()):
                break
        self._entries = list(self._catalog.entries.values())
        self.table = self._catalog.columns()
        return changed

    def _read_index(self) -> bool:
        """Apply new lines; an index that was written anew is read from its beginning."""
        path = self.directory / INDEX
        if not os.path.lexists(path):
            return False
        if self._index is None or os.fstat(self._index.fileno()).st_ino != path.lstat().st_ino:
            # held open, so that the file system cannot give its number to the next one
            old, self._index = self._index, open_regular(path)
            if old is not None:
                old.close()
            self._catalog, self._index_bytes = EpisodeCatalog(), 0
        size = os.fstat(self._index.fileno()).st_size
        if size > MOST_INDEX_BYTES:
            raise DataError(f"{path} has {size:,} bytes, more than the {MOST_INDEX_BYTES:,} that it may have")
        data = os.pread(self._index.fileno(), max(0, size - self._index_bytes), self._index_bytes)
        found = scan(data, self.schema)
        if found.damaged:
            raise DataError(damaged_line(self.directory, found.damaged[0] + self._catalog.num_records))
        self._index_bytes += found.size
        self._catalog.apply(found.records)
        return bool(found.records)

    def _index_grew(self) -> bool:
        if self._index is None or not is_regular(self.directory / INDEX):
            return False
        now = (self.directory / INDEX).stat()
        return now.st_ino != os.fstat(self._index.fileno()).st_ino or now.st_size > self._index_bytes

    def __len__(self) -> int:
        """Live episodes."""
        return len(self._entries)

    @property
    def num_steps(self) -> int:
        """Steps of all live episodes."""
        return int(self.table["length"].sum())

    @property
    def notes(self) -> list[dict[str, object]]:
        """What the writer noted about itself."""
        return list(self._catalog.notes)

    def entry(self, row: int) -> Entry:
        """Return where an episode is and what is known of it."""
        return self._entries[row]

    def episode(self, row: int) -> Episode:
        """Return one whole episode; damage raises DataError."""
        entry = self._entries[row]
        check_memory(self.schema.num_bytes(entry.facts.length), f"{self.directory}: episode {entry.id}")
        parts = self.parts(row)
        if entry.label and not is_sound(self._bytes(entry, entry.end - entry.label, entry.label)):
            raise self._damage(entry, LABEL_FAULT)
        obs = np.empty(self.schema.shape("obs", entry.facts.length), self.schema.spec.obs_dtype)
        rows = self.schema.chunk_rows
        for chunk, data in enumerate(parts[1:]):
            self._decode(entry, data, [obs[chunk * rows : (chunk + 1) * rows]])
        return Episode(obs, **self._columns(entry, parts[0]))

    def columns(self, row: int) -> dict[str, Array]:
        """Return all of an episode but its observations."""
        entry = self._entries[row]
        return self._columns(entry, self._read(entry, 0, 1)[0])

    def read_chunk(self, entry: Entry, chunk: int, out: Array) -> None:
        """Decode one chunk of an episode's observations into ``out``, which has as many rows; threads may share us."""
        self._decode(entry, self._read(entry, 1 + chunk, 2 + chunk)[0], [out])

    def parts(self, row: int) -> list[bytes]:
        """Return an episode's bytes as they are stored: small columns, then chunks of observations."""
        return self._read(self._entries[row], 0, len(self._entries[row].parts))

    def _columns(self, entry: Entry, data: bytes) -> dict[str, Array]:
        shape = self.schema.shape
        check_memory(self.schema.num_bytes(entry.facts.length), f"{self.directory}: episode {entry.id}")
        columns = {name: np.empty(shape(name, entry.facts.length), dtype) for name, dtype in COLUMNS.items()}
        self._decode(entry, data, list(columns.values()))
        return columns

    def _read(self, entry: Entry, first: int, last: int) -> list[bytes]:
        """Return some parts of an episode, with their checksums verified."""
        sizes = entry.parts[:, 0]
        begin, size = entry.offset + int(sizes[:first].sum()), int(sizes[first:last].sum())
        check_memory(2 * size, f"{self.directory}: episode {entry.id}")
        data = self._bytes(entry, begin, size)
        parts = []
        for part in range(first, last):
            piece, data = data[: sizes[part]], data[sizes[part] :]
            if len(piece) != sizes[part] or zlib.crc32(piece) != entry.parts[part, 1]:
                what = f"chunk {part - 1}" if part else "its columns"
                raise self._damage(entry, f"the checksum of {what} differs")
            parts.append(piece)
        return parts

    def _bytes(self, entry: Entry, begin: int, size: int) -> bytes:
        try:
            return self._shards.read(entry.shard, size, begin)
        except FileNotFoundError:
            raise self._damage(entry, f"{shard_path(self.directory, entry.shard).name} is missing") from None

    def _decode(self, entry: Entry, data: bytes, out: list[Array]) -> None:
        try:
            self._codec.decode(data, out)
        except ValueError as error:
            raise self._damage(entry, str(error)) from None

    def _damage(self, entry: Entry, what: str) -> DataError:
        return DataError(f"dataset {self.directory}: episode {entry.id} is damaged: {what}")

    def close(self) -> None:
        """Let go of all files."""
        self._shards.keep(set())
        if self._index is not None:
            self._index.close()
            self._index = None

    def __del__(self) -> None:
        """A view that nobody holds any more holds no files either."""
        self.close()


class _OpenShards:
    """Holds the shards of a view open: what a writer unlinks meanwhile can be read on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}

    def keep(self, shards: set[int]) -> bool:
        """Hold these and no others; say whether all of them are there."""
        for shard in self._files.keys() - shards:
            self._files.pop(shard).close()
        # beyond the limit a shard is opened for each read, and may then have been evicted
        for shard in sorted(shards - self._files.keys())[: max(0, _MAX_OPEN_SHARDS - len(self._files))]:
            try:
                self._files[shard] = open_regular(shard_path(self._directory, shard))
            except (FileNotFoundError, DataError):  # the latter: who reads it is told
                return False
        return True

    def read(self, shard: int, size: int, offset: int) -> bytes:
        """Return some bytes of a shard; fewer where it ends before."""
        if shard in self._files:
            return _read(self._files[shard], size, offset)
        with open_regular(shard_path(self._directory, shard)) as file:
            return _read(file, size, offset)


def _read(file: BinaryIO, size: int, offset: int) -> bytes:
    # an index may say anything: memory is taken for what is there
    left = os.fstat(file.fileno()).st_size - offset
    return os.pread(file.fileno(), max(0, min(size, left)), offset)
