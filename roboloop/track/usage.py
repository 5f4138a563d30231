"""What a run takes of the machine while it trains, itself and all that it started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from roboloop.core.processes import cpu_seconds, family, memory_bytes

EVERY_S = 5.0
"""Not oftener: looking at all processes of a machine takes milliseconds."""


class Usage:
    """Looks from time to time."""

    def __init__(self, of_device: Callable[[], dict[str, float]] = dict, every_s: float = EVERY_S) -> None:
        self._of_device, self._every_s = of_device, every_s
        self._at_s, self._cpu_s = time.monotonic(), self._taken()

    def look(self) -> dict[str, float]:
        """Return memory now, the device's too, and the cores that were busy since the last look; nothing too soon."""
        now_s = time.monotonic()
        passed_s = now_s - self._at_s
        if passed_s < self._every_s or not self._cpu_s:
            return {}
        before, self._cpu_s, self._at_s = self._cpu_s, self._taken(), now_s
        busy_s = sum(taken_s - before.get(pid, 0.0) for pid, taken_s in self._cpu_s.items())
        memory = memory_bytes(os.getpid())
        used = {"cores_used": max(0.0, busy_s) / passed_s, **self._of_device()}
        return used | ({"memory_mb": memory / 1e6} if memory else {})

    @staticmethod
    def _taken() -> dict[int, float]:
        """Return the processor time of all our processes; nothing where there is no /proc."""
        try:
            return cpu_seconds(family(os.getpid()))
        except OSError:
            return {}
