"""What this process may really use: cores and memory as the kernel and the container allow them."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> float:
    """Return the cores that the affinity mask and the container's quota leave us; a quota may be a fraction."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        cores = min(cores, int(quota) / int(period))
    return cores


def free_memory_bytes() -> int:
    """Return the memory that can still be taken, here and within the container's limit."""
    free = math.inf
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdecimal() and used.isdecimal():
        free = min(free, int(limit) - int(used))
    return int(free) if math.isfinite(free) else 1 << 62


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
