"""What this process may really use: cores and memory as the kernel and the container allow them."""

from __future__ import annotations

import math
import os
from pathlib import Path

ROOT = Path("/")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 of control groups says 'no limit' as a number of about 2^63."""


def usable_cores(root: Path = ROOT) -> float:
    """Return the cores that the affinity mask and the container's quota leave us; a quota may be a fraction."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    return min(cores, quota_cores(root))


def quota_cores(root: Path = ROOT) -> float:
    """Return how many cores' worth of time our control groups leave us; infinite where they do not say."""
    quotas = [math.inf]
    for group in _groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas)


def free_memory_bytes(root: Path = ROOT) -> int:
    """Return the memory that can still be taken, here and within the container's limit."""
    free = math.inf
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for group in _groups(root, "memory"):
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if not limit:  # version 1
            limit, used = _read(group / "memory.limit_in_bytes"), _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal() and int(limit) < _NO_LIMIT_BYTES:
            free = min(free, max(int(limit) - int(used), 0))
    return int(free) if math.isfinite(free) else 1 << 62


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the directories of our control groups and of those above them, whose limits hold for us too."""
    mount = root / "sys/fs/cgroup"
    found = [mount]  # where the container's own group is often all there is to see
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        inner = top / path.lstrip("/")
        found += [group for group in (inner, *inner.parents) if group == top or top in group.parents]
    return list(dict.fromkeys(found))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
