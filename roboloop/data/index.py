"""The index of a dataset: append-only checksummed lines, and the table of live episodes that they amount to."""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError, Unreadable
from roboloop.core.files import is_directory, is_regular, parse_json, read_bytes, read_json
from roboloop.core.types import Array
from roboloop.data import checks
from roboloop.data.episodes import Facts, Schema

SCHEMA, INDEX, SHARDS = "schema.json", "index.log", "shards"
MOST_INDEX_BYTES = 2 << 30


def shard_path(directory: Path, shard: int) -> Path:
    """Return where a shard lives."""
    return directory / SHARDS / f"{shard:06d}.bin"


def shard_files(directory: Path) -> dict[int, Path]:
    """Return all shards by number; what is not a regular file of such a name is none."""
    folder = directory / SHARDS
    names = {path.name: path for path in folder.iterdir()} if is_directory(folder) else {}
    numbers = sorted(int(name.removesuffix(".bin")) for name in names if re.fullmatch(r"[0-9]{6,18}\.bin", name))
    paths = {number: shard_path(directory, number) for number in numbers}
    return {number: path for number, path in paths.items() if path.name in names and is_regular(path)}


def read_schema(directory: Path) -> Schema:
    """Return a dataset's schema; a directory that is none, or has lost it, is a DataError."""
    if not os.path.lexists(directory / SCHEMA):
        raise DataError(lost_schema(directory) or f"{directory} is not a dataset")
    if os.path.lexists(folder := directory / SHARDS) and not is_directory(folder):
        raise DataError(f"{folder} is not a directory")
    try:
        return Schema.from_data(read_json(directory / SCHEMA))
    except Unreadable:
        raise
    except DataError as error:
        raise DataError(f"{directory}: {error}") from None


def lost_schema(directory: Path) -> str:
    """Return what to say of a dataset whose schema is missing; empty where there is nothing that it would describe."""
    if not is_regular(directory / INDEX) and not shard_files(directory):
        return ""
    return (
        f"{directory / SCHEMA} is missing: without it {directory / SHARDS} cannot be read, and nothing was changed; "
        "put it back, a recording of the same environment has the same"
    )


class Entry(NamedTuple):
    """Where one episode is, and what is known of it."""

    id: int
    shard: int
    offset: int
    parts: Array  # [1 + chunks, 2] bytes and crc32: the small columns, then the chunks of observations
    facts: Facts
    label: int = 0
    """Bytes of the label behind the parts; older versions wrote none."""

    @property
    def size(self) -> int:
        """Bytes in the shard."""
        return int(self.parts[:, 0].sum()) + self.label

    @property
    def end(self) -> int:
        """Where in the shard it ends."""
        return self.offset + self.size

    def to_record(self) -> dict[str, Any]:
        """Return the index record."""
        place = {"id": self.id, "shard": self.shard, "offset": self.offset, "parts": self.parts.tolist()}
        label = {"label": self.label} if self.label else {}
        return {"kind": "episode", **place, **label, "facts": self.facts.to_data()}


def entry_of(record: dict[str, Any], schema: Schema) -> Entry:
    """Return what a record says of an episode; what cannot be true is a ValueError."""
    facts = Facts.from_data(record["facts"])
    parts = np.array(checks.listed(record["parts"], MOST_PARTS))
    if parts.dtype != np.int64 or parts.shape != (1 + schema.num_chunks(facts.length), 2) or parts.min() < 0:
        raise ValueError(f"its parts cannot hold {facts.length} steps")
    stored = checks.integer(int(parts[:, 0].sum(dtype=np.float64)))  # a sum of integers may overflow
    checks.check_ratio(schema.num_bytes(facts.length), stored, len(parts))
    place = [checks.integer(record[name], 0, most) for name, most in _PLACE.items()]
    return Entry(place[0], place[1], place[2], parts, facts, checks.integer(record.get("label", 0), 0, MOST_LABEL))


MOST_PARTS, MOST_LABEL = 1 << 22, 1 << 28
_PLACE = {"id": checks.LARGEST, "shard": 10**18 - 1, "offset": checks.LARGEST}


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


def read_index(directory: Path) -> bytes:
    """Return all that an index holds; one that is missing holds nothing."""
    path = directory / INDEX
    return read_bytes(path, MOST_INDEX_BYTES) if os.path.lexists(path) else b""


def scan(data: bytes, schema: Schema) -> Scan:
    """Read lines, sound or not."""
    records: list[dict[str, Any]] = []
    damaged: list[int] = []
    size = 0
    for number, raw in enumerate(io.BytesIO(data), 1):
        if not raw.endswith(b"\n"):
            break  # a torn tail, or still being written
        size += len(raw)
        record = _parse(raw, schema)
        if record is None:
            damaged.append(number)
        else:
            records.append(record)
    return Scan(records, size, damaged)


def _parse(raw: bytes, schema: Schema) -> dict[str, Any] | None:
    """Return the record of a line if its checksum fits and it says what can be; its checksum may be a stranger's."""
    crc, _, text = raw.removesuffix(b"\n").partition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    try:
        record: dict[str, Any] = json.loads(text)
        match checks.mapping(record)["kind"]:
            case "episode":
                record["entry"] = entry_of(record, schema)
            case "evict":
                record["ids"] = [checks.integer(number) for number in checks.listed(record["ids"], 1 << 31)]
            case "move":
                for name, most in _PLACE.items():
                    checks.integer(record[name], 0, most)
                checks.integer(record.get("label", 0), 0, MOST_LABEL)
            case "next":
                checks.integer(record["id"])
                checks.integer(record["shard"], 0, _PLACE["shard"])
            case "note":
                checks.mapping(parse_json(text, INDEX)["note"])  # shown as it is, so not nested too deep
            case kind:
                checks.text(kind)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, DataError):
        return None
    return record


def damaged_line(directory: Path, number: int) -> str:
    """Return what to say of a damaged index."""
    return f"{directory / INDEX} is damaged in line {number}: roboloop dataset repair {directory} mends it"


_ROW = np.dtype([
    ("id", np.int64), ("bytes", np.int64), ("env", np.int64), ("episode", np.int64), ("length", np.int64),
    ("episode_return", np.float64), ("shaped_return", np.float64), ("success", np.float64),
    ("version_first", np.int64), ("version_last", np.int64), ("step", np.int64), ("task", object),
    ("segment", np.int64), ("key", np.float64),
])  # fmt: skip


class EpisodeCatalog:
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
                    self._add(record["entry"])
                case "evict":
                    for number in record["ids"]:
                        self._drop(number)
                case "move":
                    if record["id"] in self.entries:
                        place = {"shard": record["shard"], "offset": record["offset"], "label": record.get("label", 0)}
                        self.entries[record["id"]] = entry = self.entries[record["id"]]._replace(**place)
                        self._rows["bytes"][self._row_of[entry.id]] = entry.size
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
        self._drop(entry.id)
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
