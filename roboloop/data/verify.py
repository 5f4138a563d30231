"""What is wrong with a dataset, episode by episode."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from roboloop.core.errors import DataError
from roboloop.core.files import is_directory, open_regular
from roboloop.data.aside import ASIDE, AsideMark, lost_index, tails
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import end_fault, return_fault
from roboloop.data.index import read_index


def check_index(dataset: Dataset) -> str:
    """Raise DataError where the index has lost lines; return what is to be said of bytes that no line refers to."""
    directory = dataset.directory
    if is_written(directory):
        return "; still being written"
    data, mark = read_index(directory), AsideMark.read(directory)
    left = sum(span.end - span.begin for span in tails(directory, map(dataset.entry, range(len(dataset)))))
    if (mark is not None and not mark.fits(data)) or (mark is None and left and not data):
        raise DataError(f"{lost_index(directory)} ({left:,} bytes of shards are referred to by no line)")
    said = f"; {left:,} bytes that were never committed" if left else ""
    aside = directory / ASIDE
    moved = sum(file.lstat().st_size for file in aside.iterdir()) if is_directory(aside) else 0
    return f"{said}; {moved:,} bytes lie in {aside}" if moved else said


def is_written(directory: Path) -> bool:
    """Say whether somebody writes to a dataset now."""
    try:
        with open_regular(directory / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError):
        return False
    except BlockingIOError:
        return True
    return False


class Fault(NamedTuple):
    """One episode that cannot be trusted."""

    id: int
    what: str


def faults(dataset: Dataset) -> Iterator[Fault]:
    """Read everything and yield what is wrong: checksums, lengths, where episodes end, returns on record."""
    for row in range(len(dataset)):
        entry = dataset.entry(row)
        try:
            episode = dataset.episode(row)
        except DataError as error:
            yield Fault(entry.id, str(error).partition(" is damaged: ")[2] or str(error))
            continue
        fault = end_fault(episode) or return_fault(episode, entry.facts)
        if fault:
            yield Fault(entry.id, fault)
