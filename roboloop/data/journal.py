"""An append-only log of experience in sealed files: a commit costs what is new, never what is old."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from roboloop.core.errors import DataError
from roboloop.core.files import sync_directory
from roboloop.core.types import Array
from roboloop.data.packing import Notes, pack, unpack

Record: TypeAlias = tuple[dict[str, Array], dict[str, Any]]
_HEADER = struct.Struct("<4sQI")  # magic, payload bytes, crc32 chained over every record so far
_MAGIC = b"RLJ1"


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
        directory.mkdir(parents=True, exist_ok=True)
        self._set_aside_beyond(at)
        self._file = open(self._path(at.segment), "ab")  # noqa: SIM115 - lives as long as the journal

    def _path(self, segment: int) -> Path:
        return self.directory / f"seg-{segment:05d}.rlj"

    def _set_aside_beyond(self, at: Frontier) -> None:
        """Cut the files to the frontier; what lies beyond is robot time, so it is moved aside, never deleted."""
        aside = self.directory / "beyond"
        for path in sorted(self.directory.glob("seg-*.rlj")):
            segment = int(path.stem[4:])
            keep = at.offset if segment == at.segment else (0 if segment > at.segment else path.stat().st_size)
            if path.stat().st_size <= keep:
                continue
            aside.mkdir(exist_ok=True)
            target = aside / f"{path.stem}-{len(list(aside.iterdir())):04d}.rlj"
            with open(path, "rb") as source, open(target, "wb") as sink:
                source.seek(keep)
                shutil.copyfileobj(source, sink)
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
        self._file = open(self._path(self._at.segment), "ab")  # noqa: SIM115
        sync_directory(self.directory)

    def commit(self) -> Frontier:
        """Make every record durable and return where the journal ends."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._at

    def close(self) -> None:
        """Close the file; uncommitted records may be lost."""
        self._file.close()


def read(directory: Path, upto: Frontier) -> Iterator[Record]:
    """Yield all records before a frontier; a torn or altered one raises."""
    chain, records = 0, 0
    for segment in range(upto.segment + 1):
        path = directory / f"seg-{segment:05d}.rlj"
        if not path.exists():
            if segment == upto.segment and upto.offset == 0:
                return
            raise DataError(f"journal {path} is missing")
        limit = upto.offset if segment == upto.segment else path.stat().st_size
        with open(path, "rb") as file:
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
                info, notes = _said(payload)
                yield unpack(load_tensors(payload), notes), info
    if (chain, records) != (upto.chain, upto.records):
        raise DataError(f"journal {directory} has {records} records, the checkpoint expects {upto.records}")


def copy(source: Path, target: Path, upto: Frontier) -> None:
    """Copy a journal up to a frontier, for a run that starts from an old checkpoint."""
    target.mkdir(parents=True, exist_ok=True)
    for segment in range(upto.segment + 1):
        name = f"seg-{segment:05d}.rlj"
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
            with open(target / name, "rb+") as file:
                if segment == upto.segment:
                    file.truncate(upto.offset)
                os.fsync(file.fileno())
    sync_directory(target)


def _said(payload: bytes) -> tuple[dict[str, Any], Notes]:
    """Return what was said of a record, and notes of its packed columns."""
    length = int.from_bytes(payload[:8], "little")
    said = json.loads(payload[8 : 8 + length])["__metadata__"]
    return json.loads(said["info"]), json.loads(said.get("packed", "{}"))
