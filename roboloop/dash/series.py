"""Columns of growing logs: read on from where the last look ended, first as a sketch where a file is long."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeGuard

import msgspec
import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import open_regular
from roboloop.track.stats import Floats

SKETCH_BYTES = 1 << 20
"""A log with more unread bytes than this is drawn from single lines first."""
SKETCH_LINES = 250
_CHUNK_BYTES = 1 << 18
"""Parsed at a time: a parser holds the interpreter, and requests are to be answered in between."""
_BLOCK_BYTES = 256
_HEAD_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
_PROOF_BYTES = 64
_MOST_VALUES = 40_000_000
"""Numbers kept in memory of whole logs, of all together (320 MB)."""
_MOST_BYTES = 8 << 30
"""A log is read as a whole up to this size; of a longer one there is a sketch."""
_MOST_NAMES = 10_000
"""Names of numbers that are known of one log."""
_MOST_SKETCHED = 200_000
"""Lines of sketches kept in memory, of all logs together."""
_RARE = b'"eval/'
"""How the names of metrics begin that few lines of a long log have."""

_NUMBERS = frozenset((int, float))

Row = dict[str, Any]


class Column(NamedTuple):
    """The values of one key and the steps of their rows."""

    step: Floats
    value: Floats
    is_whole: bool
    """False: a sketch, of single lines from all over the file."""


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    mtime_ns: int


@dataclass
class _Kept:
    """What is known of one key of one file."""

    offset: int = 0
    """Behind the last whole line that was read."""
    proof: bytes = b""
    """The bytes before the offset: other ones mean that a resumed run has cut the log and gone on."""
    inode: int = 0
    pieces: list[tuple[Floats, Floats]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(2 * len(step) for step, _ in self.pieces)

    def joined(self) -> tuple[Floats, Floats]:
        if len(self.pieces) != 1:
            columns = zip(*self.pieces, strict=True) if self.pieces else ((np.empty(0),), (np.empty(0),))
            step, value = (np.concatenate(parts) for parts in columns)
            self.pieces = [(step, value)]
        return self.pieces[0]


@dataclass
class _Names:
    """The names of numbers that were seen in a log, in the order of their first appearance."""

    size: int = 0
    """Of the log at the last look."""
    has_rare: bool = False
    names: dict[str, None] = field(default_factory=dict)

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if len(self.names) >= _MOST_NAMES:
                return
            self.names |= {key: None for key, value in row.items() if key not in self.names and is_number(value)}


class Logs:
    """Columns of many logs, as far as they are known; what was asked for and is long is read by ``work``."""

    def __init__(self, sketch_bytes: int = SKETCH_BYTES) -> None:
        self._sketch_bytes = sketch_bytes
        self._kept: OrderedDict[tuple[Path, str], _Kept] = OrderedDict()
        self._wanted: OrderedDict[tuple[Path, str], None] = OrderedDict()
        self._sketches: OrderedDict[Path, tuple[Stamp, list[Row]]] = OrderedDict()
        self._names: dict[Path, _Names] = {}
        self._lock = threading.RLock()
        self.wake = threading.Event()
        self.num_read = 0
        """Long logs that have been read since they were asked for."""
        self._answering = 0

    def column(self, path: Path, key: str) -> Column:
        """Return the values of a key: all of them, or a sketch until ``work`` has read the file."""
        stamp = stamp_of(path)
        if stamp is None:
            return Column(np.empty(0), np.empty(0), True)
        with self._lock:
            kept = self._kept.get((path, key)) or _Kept()
            self._check(path, kept, stamp)
            if stamp.size - kept.offset <= self._sketch_bytes:
                self._read_on(path, key, kept, stamp.size)
                self._keep(path, key, kept)
                return Column(*kept.joined(), True)
            if stamp.size <= _MOST_BYTES:
                self._wanted[path, key] = None
                self.wake.set()
        return Column(*_column(self.sketch(path), key), False)

    def work(self) -> bool:
        """Read a part of one long log that was asked for; say whether there was anything to do."""
        with self._lock:
            if not self._wanted:
                self.wake.clear()
                return False
            path, key = next(iter(self._wanted))
            if self._read_part(path, key):
                self._wanted.move_to_end((path, key))  # a log that never ends keeps no other one waiting
            else:
                self._wanted.pop((path, key), None)
                self.num_read += 1
        return True

    def _read_part(self, path: Path, key: str) -> bool:
        """Read a part of a log; say whether so much is left that it is not to be read while somebody waits."""
        kept, stamp = self._kept.get((path, key)) or _Kept(), stamp_of(path)
        if stamp is None or stamp.size > _MOST_BYTES:
            return False
        self._check(path, kept, stamp)
        more = self._read_on(path, key, kept, stamp.size, once=True)
        self._keep(path, key, kept)
        return more and stamp.size - kept.offset > self._sketch_bytes

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Let ``work`` wait until an answer is made: both would only take turns."""
        with self._lock:
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1

    def is_asked(self) -> bool:
        """Say whether an answer is being made."""
        return self._answering > 0

    def is_reading(self) -> bool:
        """Say whether sketches are still to become whole."""
        return bool(self._wanted)

    def sketch(self, path: Path) -> list[Row]:
        """Return rows from all over a log: all of a short one, else single lines at even distances in bytes."""
        stamp = stamp_of(path)
        if stamp is None:
            return []
        with self._lock:
            known = self._sketches.get(path)
            if known and known[0] == stamp:
                return known[1]
        rows = list(_sampled(path, stamp.size))
        with self._lock:
            self._sketches[path] = stamp, rows
            while len(self._sketches) > 1 and sum(len(kept) for _, kept in self._sketches.values()) > _MOST_SKETCHED:
                self._sketches.popitem(last=False)
        return rows

    def keys(self, path: Path) -> list[str]:
        """Return the names of numbers in a log, as far as they are known: of a long one, of all that was seen of it."""
        stamp = stamp_of(path)
        if stamp is None:
            return []
        rows = self.sketch(path)
        with self._lock:
            known = self._names.setdefault(path, _Names())
            if stamp.size < known.size:  # another log, or one that a resume has cut
                known = self._names[path] = _Names()
            known.size = stamp.size
            known.add(rows)
            return [key for key in known.names if key != "step"]

    def _check(self, path: Path, kept: _Kept, stamp: Stamp) -> None:
        """Begin anew where the file is not the one that was read."""
        if kept.offset and (kept.inode != stamp.inode or _before(path, kept.offset) != kept.proof):
            kept.offset, kept.proof, kept.pieces = 0, b"", []
            self._names.pop(path, None)
        kept.inode = stamp.inode

    def _read_on(self, path: Path, key: str, kept: _Kept, size: int, once: bool = False) -> bool:
        """Read whole lines from the offset on; say whether there may be more. What grows meanwhile is for later."""
        try:
            with open_regular(path) as file:
                file.seek(kept.offset)
                while kept.offset < size and (data := _whole_lines(file)):
                    step, value = values(data, key)
                    self._note(path, data)
                    if len(step):
                        kept.pieces.append((step, value))
                    kept.offset += len(data)
                    kept.proof = (kept.proof + data[-_PROOF_BYTES:])[-_PROOF_BYTES:]
                    if once:
                        return True
        except (OSError, DataError):
            pass
        return False

    def _note(self, path: Path, data: bytes) -> None:
        """Remember the names of a line that few others are like: a sketch may miss it."""
        known = self._names.setdefault(path, _Names())
        at = -1 if known.has_rare else data.find(_RARE)
        if at >= 0:
            known.has_rare = True
            known.add(parse(data[data.rfind(b"\n", 0, at) + 1 :].partition(b"\n")[0]))

    def _keep(self, path: Path, key: str, kept: _Kept) -> None:
        self._kept[path, key] = kept
        self._kept.move_to_end((path, key))
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _MOST_VALUES:
            self._kept.popitem(last=False)


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes when a file does; none where there is no regular file of this name."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def values(data: bytes, key: str) -> tuple[Floats, Floats]:
    """Return the steps and values of the whole lines that have a key; all other numbers are not even made."""
    try:
        rows = _decoder(key).decode_lines(data)
    except (msgspec.MsgspecError, ValueError):  # no number somewhere, a torn line, or a key that no field can have
        return _column(parse(data), key)
    found = [row for row in rows if row.value is not None and row.step is not None]
    step, value = np.array([row.step for row in found], np.float64), np.array([row.value for row in found], np.float64)
    known = np.isfinite(step) & np.isfinite(value)
    return (step, value) if known.all() else (step[known], value[known])


@functools.lru_cache(maxsize=256)
def _decoder(key: str) -> Any:
    number = float | None
    named = msgspec.field(default=None, name=key)
    pair = msgspec.defstruct("Pair", [("step", number, None), ("value", number, named)], gc=False)
    return msgspec.json.Decoder(pair)


def parse(data: bytes) -> list[Row]:
    """Return the dicts of whole lines; lines that are none are left out."""
    lines = data.split(b"\n")
    try:
        rows = json.loads(b"[" + b",".join(filter(None, lines)) + b"]")  # one call is much faster than one for each
    except (ValueError, RecursionError):
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def thin(x: Floats, y: Floats, columns: int, low: float, high: float) -> tuple[Floats, Floats]:
    """Return at most four points of each of so many columns of a picture: first, lowest, highest, last."""
    inside = slice(max(int(np.searchsorted(x, low)) - 1, 0), int(np.searchsorted(x, high, "right")) + 1)
    x, y = x[inside], y[inside]
    if len(x) <= 4 * columns or not high > low:
        return x, y
    cells = np.clip((x - low) * (columns / (high - low)), -1, columns).astype(np.int64)
    starts = np.flatnonzero(np.r_[True, np.diff(cells) > 0])
    ends = np.r_[starts[1:], len(x)] - 1
    order = np.lexsort((y, cells))  # within each cell by value: its lowest is first, its highest last
    picked = np.unique(np.concatenate([starts, ends, order[starts], order[ends]]))
    return x[picked], y[picked]


def smooth(value: Floats, weight: float) -> Floats:
    """Return a running mean in which the value before counts ``weight`` as much; its beginning is not biased."""
    if not 0 < weight < 1 or len(value) < 2:
        return value
    # y[i] = sum of weight^(i-j) v[j], over the sum of weights: as products of blocks short enough not to underflow
    out, total, mass = np.empty(len(value)), 0.0, 0.0
    size = max(1, min(len(value), int(-600 / math.log(weight))))
    for start in range(0, len(value), size):
        part = value[start : start + size]
        powers = weight ** np.arange(1, len(part) + 1)
        sums = powers * (total + np.cumsum(part / powers))
        masses = powers * (mass + np.cumsum(1 / powers))
        out[start : start + size] = sums / masses
        total, mass = float(sums[-1]), float(masses[-1])
    return out


def _whole_lines(file: IO[bytes]) -> bytes:
    data = file.read(_CHUNK_BYTES)
    end = data.rfind(b"\n") + 1
    while not end and len(data) < _LONGEST_LINE:
        more = file.read(_CHUNK_BYTES)
        if not more:
            return b""
        data += more
        end = data.rfind(b"\n") + 1
    if not end:  # no log has such lines: go past it
        return data
    file.seek(end - len(data), 1)
    return data[:end]


def _before(path: Path, offset: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(max(0, offset - _PROOF_BYTES))
            return file.read(min(offset, _PROOF_BYTES))
    except (OSError, DataError):
        return b""


def _sampled(path: Path, size: int) -> Iterator[Row]:
    """Yield all rows of a short log; of a long one the first, the last and single ones at even distances in bytes."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
            if size <= len(head):
                yield from parse(head[: head.rfind(b"\n") + 1])
                return
            longest = max(map(len, head.split(b"\n")))
            block = min(max(3 * longest, _BLOCK_BYTES), _LONGEST_LINE)  # lines of evaluations may be longer
            lines = [head.partition(b"\n")[0]]
            for i in range(1, SKETCH_LINES):
                part = os.pread(file.fileno(), block, max(0, size - block) * i // (SKETCH_LINES - 1))
                # the first piece is the end of a line, the last one the beginning of another
                lines += part.split(b"\n", 2)[1:-1] if i < SKETCH_LINES - 1 else part.rsplit(b"\n", 2)[1:-1]
    except (OSError, DataError):
        return
    newest = -math.inf
    for row in parse(b"\n".join(lines)):
        step = row.get("step")
        if is_number(step) and step > newest:
            newest = step
            yield row


def _column(rows: Sequence[Row], key: str) -> tuple[Floats, Floats]:
    pairs = [(step, value) for row in rows if is_number(step := row.get("step")) and is_number(value := row.get(key))]
    table = np.array(pairs, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def is_number(value: Any) -> TypeGuard[float]:
    """Say whether a value of a log can be drawn: a whole number beyond all floats cannot."""
    try:
        return type(value) in _NUMBERS and math.isfinite(value)
    except OverflowError:
        return False


def union(names: Sequence[Sequence[str]]) -> list[str]:
    """Return all names once, in the order of their first appearance."""
    return list(dict.fromkeys(name for some in names for name in some))
