"""Durable files: written, flushed, fsynced, renamed; a full disk is one clear line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roboloop.core.errors import DataError, DiskFull


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn 'no space left' into a message that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"disk full while writing {what}: the last good checkpoint is intact; free space, then --resume"
        raise DiskFull(message) from error


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable (its name is durable after ``sync_directory``)."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_atomic(path: Path, data: bytes) -> None:
    """Replace a small file so that a reader sees the old or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> Any:
    """Read a JSON file of ours; a foreign or torn one is a DataError."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
