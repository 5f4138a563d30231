"""An append-only log of experience in sealed files: a commit costs what is new, never what is old."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from roboloop.core.errors import DataError
from roboloop.core.files import make_directory, open_append, open_new, open_regular, own_directory, sync_directory
from roboloop.core.types import Array
from roboloop.data.packing import Notes, pack, unpack

Record: TypeAlias = tuple[dict[str, Array], dict[str, Any]]
_HEADER = struct.Struct("<4sQI")  # magic, payload bytes, crc32 chained over every record so far
_MAGIC = b"RLJ1"
_NAME = re.compile(r"seg-(\d{5,9})\.rlj")


class Frontier(NamedTuple):
    """Where a journal ended at a checkpoint; everything before it is part of that checkpoint."""

    segment: int
    offset: int
    chain: int
    records: int


START = Frontier(0, 0, 0, 0)


class Journal:
    """Writer of ``seg-N.rlj`` files: records are safetensors payloads behind a length and a chained crc."""

    def __init__(self, directory: Path, segment_bytes: int, at: Frontier = START) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._at = at
        make_directory(directory)
        self._set_aside_beyond(at)
        self._file = os.fdopen(open_append(self._path(at.segment)), "ab")
        sync_directory(directory)

    def _path(self, segment: int) -> Path:
        return self.directory / f"seg-{segment:05d}.rlj"

    def _set_aside_beyond(self, at: Frontier) -> None:
        """Cut the files to the frontier; what lies beyond is robot time, so it is moved aside, never deleted."""
        aside = self.directory / "beyond"
        for path, segment in _segments(self.directory):
            keep = at.offset if segment == at.segment else (0 if segment > at.segment else path.stat().st_size)
            if path.stat().st_size <= keep:
                continue
            _copy_to_new(path, keep, own_directory(aside))
            if segment > at.segment:
                path.unlink()
            else:
                os.truncate(path, keep)

    def append(self, columns: dict[str, Array], info: dict[str, Any]) -> None:
        """Add one record; it is durable after the next ``commit``."""
        packed, notes = pack(columns)
        said = {"info": json.dumps(info)} | ({"packed": json.dumps(notes)} if notes else {})
        payload = save_tensors(packed, metadata=said)
        if self._at.offset and self._at.offset + len(payload) > self._segment_bytes:
            self._seal()
        chain = zlib.crc32(payload, self._at.chain)
        self._file.write(_HEADER.pack(_MAGIC, len(payload), chain))
        self._file.write(payload)
        size = self._at.offset + _HEADER.size + len(payload)
        self._at = Frontier(self._at.segment, size, chain, self._at.records + 1)

    def _seal(self) -> None:
        self.commit()
        self._file.close()
        self._at = self._at._replace(segment=self._at.segment + 1, offset=0)
        self._file = os.fdopen(open_append(self._path(self._at.segment)), "ab")
        sync_directory(self.directory)

    def commit(self) -> Frontier:
        """Make every record durable and return where the journal ends."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._at

    def close(self) -> None:
        """Close the file; uncommitted records may be lost."""
        self._file.close()


def _segments(directory: Path) -> list[tuple[Path, int]]:
    """Return the files of a journal in order; what a sync tool or a user put beside them is left alone."""
    named = [(path, _NAME.fullmatch(path.name)) for path in sorted(directory.iterdir())]
    return [(path, int(match[1])) for path, match in named if match]


def _copy_to_new(path: Path, begin: int, aside: Path) -> None:
    """Copy the end of a segment to a new file beside the journal, and make that durable."""
    number = 0
    while os.path.lexists(target := aside / f"{path.stem}-{number:04d}.rlj"):
        number += 1
    with open_regular(path) as source, os.fdopen(open_new(target), "wb") as sink:
        source.seek(begin)
        shutil.copyfileobj(source, sink)
        sink.flush()
        os.fsync(sink.fileno())
    sync_directory(aside)


def read(directory: Path, upto: Frontier) -> Iterator[Record]:
    """Yield all records before a frontier; a torn or altered one raises."""
    chain, records = 0, 0
    for segment in range(upto.segment + 1):
        path = directory / f"seg-{segment:05d}.rlj"
        if not path.exists():
            if segment == upto.segment and upto.offset == 0:
                return
            raise DataError(f"journal {path} is missing")
        with open_regular(path) as file:
            limit = upto.offset if segment == upto.segment else os.fstat(file.fileno()).st_size
            while file.tell() < limit:
                header = file.read(_HEADER.size)
                if len(header) < _HEADER.size or header[:4] != _MAGIC:
                    raise DataError(f"journal {path} is damaged at byte {file.tell()}: no record header")
                _, size, crc = _HEADER.unpack(header)
                payload = file.read(size) if size <= limit - file.tell() else b""
                chain = zlib.crc32(payload, chain)
                if len(payload) < size or chain != crc:
                    raise DataError(f"journal {path} is damaged at byte {file.tell()}: checksum differs")
                records += 1
                yield _record(payload, path)
    if (chain, records) != (upto.chain, upto.records):
        raise DataError(f"journal {directory} has {records} records, the checkpoint expects {upto.records}")


def copy(source: Path, target: Path, upto: Frontier) -> None:
    """Copy a journal up to a frontier, for a run that starts from an old checkpoint."""
    target.mkdir(parents=True, exist_ok=True)
    for segment in range(upto.segment + 1):
        name = f"seg-{segment:05d}.rlj"
        if (source / name).exists():
            with open_regular(source / name) as old, os.fdopen(open_new(target / name), "wb") as new:
                shutil.copyfileobj(old, new)
                if segment == upto.segment:
                    new.truncate(upto.offset)
                new.flush()
                os.fsync(new.fileno())
    sync_directory(target)


def _record(payload: bytes, path: Path) -> Record:
    try:
        info, notes = _said(payload)
        return unpack(load_tensors(payload), notes), info
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"journal {path} is damaged: {type(error).__name__} {error}") from None


def _said(payload: bytes) -> tuple[dict[str, Any], Notes]:
    """Return what was said of a record, and notes of its packed columns."""
    length = int.from_bytes(payload[:8], "little")
    said = json.loads(payload[8 : 8 + length])["__metadata__"]
    return json.loads(said["info"]), json.loads(said.get("packed", "{}"))
