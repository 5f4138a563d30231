"""What the processes of a run take, and which of them lives and holds what, as the kernel says."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def boot_id() -> str:
    """Return what distinguishes this boot of this machine from any other; empty where the system does not say."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_alive(pid: int) -> bool:
    """Say whether a process of this machine still runs; a zombie does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    fields = _stat(pid, PROC)
    return not fields or fields[0] != "Z"


def started_ticks(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot, which no change of the clock moves."""
    fields = _stat(pid, PROC)
    return int(fields[19]) if fields else None


def has_open(pid: int, path: Path) -> bool | None:
    """Say whether a process has a file open under this name; None where there is no such file, or we may not look.

    A lock file is open in the process that holds it. To try the lock would keep others from taking it meanwhile.
    """
    try:
        wanted, folder = path.lstat(), path.parent.stat()
        files = list((PROC / str(pid) / "fd").iterdir())
    except (OSError, ValueError):
        return None
    return any(_is_open(file, wanted, folder) for file in files)


def _is_open(file: Path, wanted: os.stat_result, folder: os.stat_result) -> bool:
    try:
        if not os.path.samestat(file.stat(), wanted):
            return False
        where = Path(os.readlink(file)).parent
    except OSError:  # it has just been closed
        return False
    try:
        return os.path.samestat(where.stat(), folder)  # a copy by hard links is the same file under another name
    except OSError:  # of a container, which calls its folders otherwise
        return True


def _stat(pid: int, proc: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def memory_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Return the memory of a process and all that it started; what they share is counted once. None: it is gone."""
    alone = shared = 0
    found = False
    for each in family(pid, proc):
        sizes = _sizes(each, proc)
        if sizes:
            found = True
            alone += sizes.get("RssAnon", 0)
            shared = max(shared, sizes.get("RssFile", 0) + sizes.get("RssShmem", 0))
    return alone + shared if found else None


def cpu_seconds(pids: Iterable[int], proc: Path = PROC) -> dict[int, float]:
    """Return the processor time that living processes have taken so far."""
    tick_hz = os.sysconf("SC_CLK_TCK")
    taken = {}
    for pid in pids:
        with contextlib.suppress(IndexError):  # it has just ended
            fields = _stat(pid, proc)
            taken[pid] = (int(fields[11]) + int(fields[12])) / tick_hz
    return taken


def family(pid: int, proc: Path = PROC) -> list[int]:
    """Return a process, its children, and theirs."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name), proc)
            if fields:  # else it has just ended
                children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for each in found:  # grows while it is walked
        found += children[each]
    return found


def _sizes(pid: int, proc: Path) -> dict[str, int]:
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith("Rss"))
    return {name: int(text.split()[0]) * 1024 for name, text in pairs}
