"""Durable files: written, flushed, fsynced, renamed; a full disk is one clear line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from roboloop.core.errors import DataError, DiskFull, RunExists

RESUME = "the last good checkpoint is intact; free space, then --resume"


@contextlib.contextmanager
def disk_errors(what: str, advice: str = RESUME) -> Iterator[None]:
    """Turn 'no space left' into a message that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(f"disk full while writing {what}: {advice}") from error


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable (its name is durable after ``sync_directory``)."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_directory(path: Path) -> None:
    """Make a directory, unless it is there; what keeps it from being made is one line."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DataError(f"{_short(path)} cannot be made: {error.strerror}") from None


def is_there(path: Path) -> bool:
    """Say whether a file is there; a path that no file system takes is one line."""
    try:
        return path.exists()
    except OSError as error:
        raise DataError(f"{_short(path)}: {error.strerror}") from None


def _short(path: Path) -> str:
    return str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}…"


_LONGEST = 200  # characters of a path in a message


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Make the folder of a file that a user asked for; what keeps it from being written is one line."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror or error}") from None


def is_inside(path: Path, root: Path) -> bool:
    """Say whether what a path leads to after all symbolic links is a root or below it."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve(strict=True))
    except (OSError, RuntimeError, ValueError):
        return False


def replace_atomic(path: Path, data: bytes) -> None:
    """Replace a small file so that a reader sees the old or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    try:
        os.replace(temporary, path)
    except OSError:  # a directory of that name
        temporary.unlink()
        raise


def take_lock(directory: Path, doing: str, *where: str) -> IO[str]:
    """Hold a directory's lock; the kernel drops it when the process dies, however it dies.

    The file says our process id, and behind it where that is: a host first, for locks that other machines look at.
    """
    lock = open(directory / "lock", "a+")  # noqa: SIM115 - held open as long as the directory is ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = " on ".join(lock.read().split()[:2]) or "unknown"
        lock.close()
        raise RunExists(f"{directory} is {doing} process {owner}: nothing was changed") from None
    lock.truncate(0)
    lock.write(" ".join([str(os.getpid()), *where]))
    lock.flush()
    return lock


def append_durable(fd: int, size: int, *parts: bytes, sync: bool = True) -> int:
    """Append to a file of ``size`` bytes and return its new size; where there is no room the file stays as it was."""
    try:
        for part in parts:
            rest = memoryview(part)
            while len(rest):
                rest = rest[os.write(fd, rest) :]
        if sync:
            os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise
    return size + sum(map(len, parts))


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield where to write a new file or directory; it gets its name when it is whole and durable, or never."""
    _refuse_existing(out)
    stage = out.with_name(f".{out.name}.tmp")
    stage.mkdir(parents=True, exist_ok=True)
    with take_lock(stage, "written by"):
        try:
            for left_by_a_crash in stage.iterdir():
                if left_by_a_crash.name != "lock":
                    _remove(left_by_a_crash)
            yield stage / out.name
            _sync_tree(stage / out.name)
            _refuse_existing(out)  # it may have come meanwhile
            os.rename(stage / out.name, out)
            sync_directory(out.parent)
        finally:
            shutil.rmtree(stage)


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise DataError(f"{path} exists: nothing was changed")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync_tree(path: Path) -> None:
    for inner in [path, *path.rglob("*")]:
        if inner.is_dir():
            sync_directory(inner)
        else:
            with open(inner, "rb") as file:
                os.fsync(file.fileno())


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
