"""What belongs to certain processes only, and time as it passes for one thread: others use the machine too."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

LISTENS = "0A"


def is_alive(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process stand for; nothing of one that has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return where these processes wait for connections: the address as the kernel writes it, and the port."""
    inodes = {name[8:-1] for pid in pids for name in open_files(pid) if name.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def own_s(thread: int | None = None) -> float:
    """Return a clock that stands still while this thread, or another of ours, could go on but others have the cores."""
    path = "/proc/thread-self/schedstat" if thread is None else f"/proc/self/task/{thread}/schedstat"
    try:
        waited_ns = int(Path(path).read_text().split()[1])
    except (OSError, IndexError):  # a kernel that does not count it
        waited_ns = 0
    return time.monotonic() - waited_ns / 1e9
