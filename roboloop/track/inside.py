"""What stands in a folder of a run, looked at without following a link and only so far."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from roboloop.core.files import is_directory

MOST_FILES = 5_000
_DEPTH = 8


def names_in(folder: Path, depth: int = _DEPTH, most: int = MOST_FILES) -> list[Path]:
    """Return all that is no directory at or below a folder, sorted; of more than ``most`` entries the first ones.

    A folder that is a link has nothing in it, and what a link leads to is not looked at.
    """
    return sorted(_walk(folder, depth, [most]))


def _walk(folder: Path, depth: int, left: list[int]) -> Iterator[Path]:
    if not depth or not is_directory(folder):
        return
    inner: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    break
                if entry.is_dir(follow_symlinks=False):
                    inner.append(folder / entry.name)
                else:
                    yield folder / entry.name
    except OSError:  # it has just gone, or is not ours to read
        return
    for each in inner:
        yield from _walk(each, depth - 1, left)
