"""The index of a dataset: append-only checksummed lines, and the table of live episodes that they amount to."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import read_json
from roboloop.core.types import Array
from roboloop.data.episodes import Facts, Schema

SCHEMA, INDEX, SHARDS = "schema.json", "index.log", "shards"


def shard_path(directory: Path, shard: int) -> Path:
    """Return where a shard lives."""
    return directory / SHARDS / f"{shard:06d}.bin"


def read_schema(directory: Path) -> Schema:
    """Return a dataset's schema; a directory that is none is a DataError."""
    if not (directory / SCHEMA).is_file():
        raise DataError(f"{directory} is not a dataset")
    try:
        return Schema.from_data(read_json(directory / SCHEMA))
    except DataError as error:
        raise DataError(f"{directory}: {error}") from None


class Entry(NamedTuple):
    """Where one episode is, and what is known of it."""

    id: int
    shard: int
    offset: int
    parts: Array  # [1 + chunks, 2] bytes and crc32: the small columns, then the chunks of observations
    facts: Facts

    @property
    def size(self) -> int:
        """Bytes in the shard."""
        return int(self.parts[:, 0].sum())

    def to_record(self) -> dict[str, Any]:
        """Return the index record."""
        place = {"id": self.id, "shard": self.shard, "offset": self.offset, "parts": self.parts.tolist()}
        return {"kind": "episode", **place, "facts": self.facts.to_data()}


class Scan(NamedTuple):
    """What was found in a stretch of an index."""

    records: list[dict[str, Any]]
    size: int
    """Bytes of whole lines; what follows is a torn tail, or still being written."""
    damaged: list[int]
    """Numbers of the lines that are not sound, counted from 1."""


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as one line: checksum and compact JSON."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def scan(data: bytes) -> Scan:
    """Read lines, sound or not."""
    records: list[dict[str, Any]] = []
    damaged: list[int] = []
    size = 0
    for number, raw in enumerate(io.BytesIO(data), 1):
        if not raw.endswith(b"\n"):
            break  # a torn tail, or still being written
        size += len(raw)
        record = _parse(raw)
        if record is None:
            damaged.append(number)
        else:
            records.append(record)
    return Scan(records, size, damaged)


def _parse(raw: bytes) -> dict[str, Any] | None:
    crc, _, text = raw.removesuffix(b"\n").partition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    record: dict[str, Any] = json.loads(text)
    return record


def damaged_line(directory: Path, number: int) -> str:
    """Return what to say of a damaged index."""
    return f"{directory / INDEX} is damaged in line {number}: roboloop dataset repair {directory} drops it"


_ROW = np.dtype([
    ("id", np.int64), ("bytes", np.int64), ("env", np.int64), ("episode", np.int64), ("length", np.int64),
    ("episode_return", np.float64), ("shaped_return", np.float64), ("success", np.float64),
    ("version_first", np.int64), ("version_last", np.int64), ("step", np.int64), ("task", object),
    ("segment", np.int64), ("key", np.float64),
])  # fmt: skip


class Catalog:
    """The live episodes, by applying records one after another."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        """By id, which is the order in which the episodes ended."""
        self.notes: list[dict[str, Any]] = []
        self.next_id = 0
        self.next_shard = 0
        self.num_records = 0
        self._rows = np.zeros(256, _ROW)
        self._alive = np.zeros(256, bool)
        self._row_of: dict[int, int] = {}
        self._count = 0

    def apply(self, records: Iterable[dict[str, Any]]) -> None:
        """Take over what records say; kinds that a later version may add are left alone."""
        for record in records:
            self.num_records += 1
            match record["kind"]:
                case "episode":
                    parts = np.array(record["parts"], np.int64)
                    facts = Facts.from_data(record["facts"])
                    self._add(Entry(record["id"], record["shard"], record["offset"], parts, facts))
                case "evict":
                    for number in record["ids"]:
                        self._drop(number)
                case "move":
                    if record["id"] in self.entries:
                        place = {"shard": record["shard"], "offset": record["offset"]}
                        self.entries[record["id"]] = self.entries[record["id"]]._replace(**place)
                    self.next_shard = max(self.next_shard, record["shard"] + 1)
                case "next":  # an index that was written anew without its dead: their numbers stay taken
                    self.next_id = max(self.next_id, record["id"])
                    self.next_shard = max(self.next_shard, record["shard"])
                case "note":
                    self.notes.append(record["note"])

    def records(self) -> Iterable[dict[str, Any]]:
        """Return the fewest records that amount to the same."""
        yield {"kind": "next", "id": self.next_id, "shard": self.next_shard}
        yield from ({"kind": "note", "note": note} for note in self.notes)
        yield from (entry.to_record() for entry in self.entries.values())

    def columns(self) -> dict[str, Array]:
        """Return one row per live episode, as arrays by name."""
        rows = self._rows[: self._count][self._alive[: self._count]]
        return {name: np.ascontiguousarray(rows[name]) for name in _ROW.names or ()}

    def _add(self, entry: Entry) -> None:
        if self._count == len(self._rows):
            self._make_room()
        self.entries[entry.id] = entry
        self._row_of[entry.id] = self._count
        self._rows[self._count] = (entry.id, entry.size, *entry.facts)
        self._alive[self._count] = True
        self._count += 1
        self.next_id = max(self.next_id, entry.id + 1)
        self.next_shard = max(self.next_shard, entry.shard + 1)

    def _drop(self, number: int) -> None:
        if self.entries.pop(number, None) is not None:
            self._alive[self._row_of.pop(number)] = False

    def _make_room(self) -> None:
        """Leave out the dead, then double."""
        rows = self._rows[self._alive]
        self._count = len(rows)
        size = max(256, 2 * self._count)
        self._rows, self._alive = np.zeros(size, _ROW), np.zeros(size, bool)
        self._rows[: self._count] = rows
        self._row_of = {int(number): row for row, number in enumerate(rows["id"])}
        self._alive[: self._count] = True
