"""The metric log (one dict per line, the truth) and the meter that averages between its lines."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError, DiskError
from roboloop.core.files import disk_errors, make_directory, open_append, open_regular, sync_directory
from roboloop.core.sealed import TAIL_BYTES, Chain, checksum_of
from roboloop.core.types import State
from roboloop.track.read import lines_of


def finite(value: Any) -> Any:
    """Return a JSON value: numpy and 0-d tensors as numbers, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors
        return finite(value.tolist())
    # JSON has no NaN: other readers (jq, browsers) would refuse the whole line
    return None if isinstance(value, float) and not math.isfinite(value) else value


DELAY_EDGES_MS = (0.0, *(round(10 ** (k / 5), 4) for k in range(-10, 16)))
"""Edges of the bins in which delays are counted, five for each factor of ten from 0.01 ms to a second."""


def delay_counts(delays_ms: Any) -> list[int]:
    """Return how many delays fall into each bin; what is longer than all of them is in the last."""
    counts, _ = np.histogram(np.clip(delays_ms, 0.0, DELAY_EDGES_MS[-1]), DELAY_EDGES_MS)
    return [int(count) for count in counts]


def score(success: float | None, episode_return: float) -> float:
    """Rank policies by success, then by return; by return alone where there is no success."""
    if success is None or math.isnan(success):
        return episode_return
    return success + 1e-9 * episode_return


class LogMark(NamedTuple):
    """Where a log ended at a checkpoint."""

    offset: int
    chain: int | None
    """Checksum of all rows before it; none in logs of older versions."""


class JsonlLog:
    """Append-only file of one JSON dict per line, each with a checksum; a line is whole or it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_directory(path.parent)
        # unbuffered: a line is on its way to the disk when write returns, and the offset is always true
        self._file = os.fdopen(open_append(path), "ab", buffering=0)
        self._offset = _end_of_last_line(path)
        self._file.truncate(self._offset)
        self._chain = self._chain_at(self._offset)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line; when the disk is full the file keeps its last whole line."""
        chain = Chain(self._chain.value)
        line = line_of(row, chain)
        rest = memoryview(line)
        try:
            with disk_errors(str(self.path)):
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
        except (OSError, DiskError):
            with contextlib.suppress(OSError):  # a disk that failed may not let itself be cut either
                self._file.truncate(self._offset)
            raise
        self._offset += len(line)
        self._chain = chain

    def mark(self) -> LogMark:
        """Return where the log ends now."""
        return LogMark(self._offset, self._chain.value)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        os.fsync(self._file.fileno())
        sync_directory(self.path.parent)

    def check(self, mark: LogMark) -> None:
        """Raise DataError unless the log up to a mark is what was written then."""
        self._check_reach(mark.offset)
        chain, at = Chain(), 0
        for number, line in enumerate(lines_of(self.path), start=1):
            if at == mark.offset:
                break
            at += len(line) + 1
            try:
                chain.opened(line)
            except ValueError as error:
                raise DataError(f"{self.path}: line {number} {error}") from None
        if mark.chain is not None and chain.value != mark.chain:
            raise DataError(f"{self.path}: its rows are not those of the checkpoint")

    def truncate(self, offset: int) -> None:
        """Go back to an offset of a checkpoint."""
        self._check_reach(offset)
        self._file.truncate(offset)
        self._offset, self._chain = offset, self._chain_at(offset)

    def cut(self, offset: int) -> None:
        """Go back to an offset as far as there is anything: of a log that a run can go on without."""
        if offset < self._offset:
            self._file.truncate(offset)
        self._offset = _end_of_last_line(self.path)
        self._file.truncate(self._offset)
        self._chain = self._chain_at(self._offset)

    def _check_reach(self, offset: int) -> None:
        if self._offset < offset:
            raise DataError(f"{self.path}: has {self._offset} bytes, the checkpoint was made at {offset}")
        if offset and self._bytes_before(offset, 1) != b"\n":
            raise DataError(f"{self.path}: offset {offset} is inside a line; not the log of this checkpoint")

    def _chain_at(self, offset: int) -> Chain:
        return Chain(checksum_of(self._bytes_before(offset, TAIL_BYTES + 1)[:-1]))

    def _bytes_before(self, offset: int, size: int) -> bytes:
        with open_regular(self.path) as file:
            file.seek(max(offset - size, 0))
            return file.read(min(size, offset))

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()


def line_of(row: Mapping[str, Any], chain: Chain) -> bytes:
    """Return a row of a log as its line."""
    return chain.seal(json.dumps(finite(row), allow_nan=False).encode()) + b"\n"


def _end_of_last_line(path: Path, block: int = 1 << 16) -> int:
    """Return the offset after the last newline: a torn tail would glue itself to the next line."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - block, 0)
            file.seek(start)
            data = file.read(end - start)
            at = data.rfind(b"\n")
            if at >= 0 and data[at - 1 : at] != b"\0":
                return start + at + 1
            end = start + max(at, 0)  # a power cut can leave a finished line of zeros: it is none
    return 0


class Meter:
    """Means of named values since the last flush, without a device sync per value."""

    def __init__(self) -> None:
        # name -> [count, sum of numbers, sum of tensors]. Two sums, because a tensor sum rounds to its own dtype: in a
        # common sum the result would depend on whether a checkpoint had turned it into a number in between.
        self._sums: dict[str, list[Any]] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Add one value per name: numbers, numpy scalars or 0-d tensors."""
        for name, value in values.items():
            entry = self._sums.setdefault(name, [0, 0.0, 0])
            entry[0] += 1
            if hasattr(value, "detach"):
                # detached, or the sum keeps every graph alive; never in place: the caller's tensor may be a reused one
                entry[2] = entry[2] + value.detach()
            else:
                entry[1] += float(value)

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush, in the order of first appearance, and start anew."""
        sums, self._sums = self._sums, {}
        return {name: (number + float(tensor)) / count for name, (count, number, tensor) in sums.items()}

    def state(self) -> State:
        """Return sums and counts as JSON values; a list, because the order of names is part of the state."""
        return {"sums": [[name, *finite(entry)] for name, entry in self._sums.items()]}

    def load(self, state: State) -> None:
        """Restore sums and counts; a sum that was not finite stays so."""
        sums = {
            str(name): [int(count), *(math.nan if total is None else float(total) for total in (numbers, tensors))]
            for name, count, numbers, tensors in state["sums"]
        }
        if any(count < 1 for count, *_ in sums.values()):
            raise ValueError("a mean of no values")
        self._sums = sums
