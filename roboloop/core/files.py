"""Files: written so that a power cut leaves the old or the new, and read as data that may come from a stranger.

A run directory or a dataset may have been made by anyone. A file in one is opened only if it is a regular file and no
link, small files are bounded before memory is taken for them, and the nesting of JSON is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from roboloop.core.errors import DataError, DiskError, RunExists, Unreadable

RESUME = "the last good checkpoint is intact; free space, then --resume"
SMALL = 16 << 20
"""Bytes of the largest file that is read as a whole without being asked for by its size."""
_NESTING = 100
"""Deepest nesting of a JSON file."""
_LONGEST = 200
"""Characters of a path in a message."""
DISK_FAULTS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota exceeded",
    errno.EIO: "disk failed",
    errno.EROFS: "disk is read-only",
}
"""What an operating system says when the disk, and nobody's input, is at fault."""


@contextlib.contextmanager
def disk_errors(what: str, advice: str = RESUME) -> Iterator[None]:
    """Turn a full, failing or read-only disk into a message that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        raise DiskError(f"{DISK_FAULTS[error.errno]} while writing {what}: {advice}") from error


def open_regular(path: Path, follow: bool = False) -> BinaryIO:
    """Open a file to read; what is no regular file is refused at once, and a link too unless ``follow``."""
    return os.fdopen(_open(path, os.O_RDONLY, follow), "rb")


def open_append(path: Path) -> int:
    """Open a file to append to, made if it is not there; never through a link."""
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def open_new(path: Path) -> int:
    """Make a file to append to; a name that is taken, by a link too, is refused."""
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def _open(path: Path, flags: int, follow: bool = False) -> int:
    # O_NONBLOCK: opening a FIFO does not wait for whoever is at its other end
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DataError(f"{short(path)} is a symbolic link: it is not followed") from None
        if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV):  # a directory, a FIFO or socket, a device
            raise DataError(f"{short(path)} is not a regular file") from None
        if error.errno == errno.ENAMETOOLONG:
            raise DataError(f"{short(path)}: {error.strerror}") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DataError(f"{short(path)} is not a regular file")
    return fd


def read_bytes(path: Path, most: int = SMALL, follow: bool = False) -> bytes:
    """Return the bytes of a regular file; one with more than ``most`` is refused before memory is taken for it."""
    try:
        with open_regular(path, follow) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DataError(f"{short(path)} has {size:,} bytes, more than the {most:,} that it may have")
            return file.read(size)
    except FileNotFoundError:
        raise DataError(f"{short(path)} does not exist") from None
    except OSError as error:
        kind = Unreadable if error.errno in DISK_FAULTS else DataError
        raise kind(f"{short(path)} cannot be read: {error.strerror}") from None


def read_json(path: Path, most: int = SMALL) -> Any:
    """Read a small JSON file of ours; a foreign or torn one is a DataError."""
    return parse_json(read_bytes(path, most), short(path))


def parse_json(data: bytes, what: str) -> Any:
    """Return the value of a JSON text; what is none, or is nested too deep to be walked, is a DataError."""
    try:
        if _nesting(data) > _NESTING:
            raise ValueError(f"nested more than {_NESTING} deep")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is damaged: {error}") from None


def _nesting(data: bytes) -> int:
    """Return how deep brackets are nested; those in texts are only left out where it matters."""
    depth = _deepest(data)
    return _deepest(_TEXT.sub(b"", data)) if depth > _NESTING else depth


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _deepest(data: bytes) -> int:
    letters = np.frombuffer(data, np.uint8) & 0xDF  # brackets and braces of a kind are one letter then
    steps = (letters == 0x5B).astype(np.int32) - (letters == 0x5D)
    return int(steps.cumsum().max(initial=0))


def is_directory(path: Path) -> bool:
    """Say whether a path is a directory itself, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_regular(path: Path) -> bool:
    """Say whether a path is a regular file itself, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def own_directory(path: Path) -> Path:
    """Return a directory of a run or a dataset, made if it is not there; a link in its place is refused."""
    if path.is_symlink():
        raise DataError(f"{short(path)} is a symbolic link: it is not followed")
    make_directory(path)
    return path


def remove(path: Path) -> None:
    """Delete a file, a link (never what it leads to), or a directory with all that is in it."""
    if is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def short(path: Path) -> str:
    """Return a path as a message shows it."""
    return str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}…"


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable (its name is durable after ``sync_directory``)."""
    with os.fdopen(open_new(path), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durable(path: Path, data: bytes) -> None:
    """Replace a file so that after a power cut it is the old or the new one, whole."""
    _replace(path, data, durable=True)
    sync_directory(path.parent)


def replace_atomic(path: Path, data: bytes) -> None:
    """Replace a small file so that a reader sees the old or the new one, never half of it; not durable."""
    _replace(path, data, durable=False)


def _replace(path: Path, data: bytes, durable: bool) -> None:
    temporary = temporary_name(path)
    remove(temporary)  # of a crash; or a link, which must not be written through
    try:
        with os.fdopen(open_new(temporary), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except IsADirectoryError:
        temporary.unlink()
        raise DataError(f"{short(path)} cannot be written: it is a directory") from None
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_name(path: Path) -> Path:
    """Return where the next version of a file is written."""
    return path.with_name(f".{path.name}.tmp")


def make_directory(path: Path) -> None:
    """Make a directory with a durable name, unless it is there; what keeps it from being made is one line."""
    try:
        new = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in new:
            sync_directory(each.parent)
    except OSError as error:
        if error.errno in DISK_FAULTS:
            raise
        raise DataError(f"{short(path)} cannot be made: {error.strerror}") from None


def is_there(path: Path) -> bool:
    """Say whether a file is there; a path that no file system takes is one line."""
    try:
        return path.exists()
    except OSError as error:
        raise DataError(f"{short(path)}: {error.strerror}") from None


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Make the folder of a file that a user asked for; what keeps it from being written is one line."""
    if out.name in ("", ".."):
        raise DataError(f"{short(out)} is no name of a file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in DISK_FAULTS:
            raise DiskError(f"{DISK_FAULTS[error.errno]} while writing {short(out)}") from None
        raise DataError(f"{short(out)} cannot be written: {error.strerror or error}") from None


def is_inside(path: Path, root: Path) -> bool:
    """Say whether what a path leads to after all symbolic links is a root or below it."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve(strict=True))
    except (OSError, RuntimeError, ValueError):
        return False


def take_lock(directory: Path, doing: str, *where: str) -> IO[str]:
    """Hold a directory's lock; the kernel drops it when the process dies, however it dies.

    The file says our process id, and behind it where that is: a host first, for locks that other machines look at.
    """
    lock = os.fdopen(
        _open(directory / "lock", os.O_RDWR | os.O_CREAT), "r+"
    )  # held open as long as the directory is ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = " on ".join(lock.read(_LONGEST).split()[:2]) or "unknown"
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
        with contextlib.suppress(OSError):  # a disk that failed may not let itself be cut either
            os.ftruncate(fd, size)
        raise
    return size + sum(map(len, parts))


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield where to write a new file or directory; it gets its name when it is whole and durable, or never."""
    _refuse_existing(out)
    stage = own_directory(temporary_name(out))
    with take_lock(stage, "written by"):
        try:
            for left_by_a_crash in stage.iterdir():
                if left_by_a_crash.name != "lock":
                    remove(left_by_a_crash)
            yield stage / out.name
            _sync_tree(stage / out.name)
            _refuse_existing(out)  # it may have come meanwhile
            os.rename(stage / out.name, out)
            try:
                sync_directory(out.parent)
            except OSError:
                with contextlib.suppress(OSError):  # on a disk that failed for good it keeps its name
                    os.rename(out, stage / out.name)
                raise
        finally:
            with contextlib.suppress(OSError):  # a disk that failed keeps what was staged; the next try sweeps it up
                shutil.rmtree(stage)


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise DataError(f"{path} exists: nothing was changed")


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
