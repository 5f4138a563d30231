"""What the processes of a run take, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


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
        with contextlib.suppress(OSError):  # it has just ended
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            taken[pid] = (int(fields[11]) + int(fields[12])) / tick_hz
    return taken


def family(pid: int, proc: Path = PROC) -> list[int]:
    """Return a process, its children, and theirs."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
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
