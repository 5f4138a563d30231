"""Start and stop samplers many times and look for what they leave: processes, descriptors, shared-memory segments.

``python -m tests.faults.start_and_stop 1000`` is the long version of the test in test_start_stop.py.
"""

from __future__ import annotations

import os
import sys
import time

from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.sample.buffers import Shape
from roboloop.sample.config import SampleConfig
from roboloop.sample.crew import Crew
from roboloop.sample.group import plans
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from tests.sample.kit import LinearPolicy

ENV = EnvConfig(id="tiny/point")


def traces() -> dict[str, list[str]]:
    """Everything that could be left behind."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read().split()
    descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    return {
        "processes": children,
        "descriptors": sorted(d for d in descriptors if "memfd" in d or "socket" in d or "pipe" in d),
        "segments": sorted(os.listdir("/dev/shm")),
    }


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def cycle(number: int) -> None:
    """Start a sampler, use it or not, and stop it: by turns in every way that a run may end."""
    policy = LinearPolicy(2, 1)
    cfg = SampleConfig(groups=2, workers=2, free_running=bool(number % 2))
    shape = Shape(make(ENV).spec, 4, 4, memory_size=policy.memory_size)
    crew = Crew(ENV, plans(4, 2, 0), shape, cfg, cfg.queue if cfg.free_running else 1, [policy])
    sampler = FreeSampler(crew) if cfg.free_running else LockStepSampler(crew)
    if number % 3:
        sampler.collect(policy)
    if number % 5 == 4:
        os.kill(crew.pids[0], 9)
    sampler.close()


def main(cycles: int) -> int:
    """Return how many kinds of trace have grown."""
    cycle(0)
    before, begin_s = traces(), time.monotonic()
    for number in range(cycles):
        cycle(number)
        if number % 50 == 49:
            print(f"{number + 1} cycles, {time.monotonic() - begin_s:.0f} s", flush=True)
    after = traces()
    grown = {kind: after[kind] for kind in before if after[kind] != before[kind]}
    print(f"{cycles} cycles in {time.monotonic() - begin_s:.0f} s; left behind: {grown or 'nothing'}")
    return len(grown)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
