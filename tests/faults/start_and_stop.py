"""Start and stop samplers many times and look for what they leave: processes, descriptors, shared-memory segments.

``python -m tests.faults.start_and_stop 1000`` is the long version of the test in test_start_stop.py. Others use the
machine too, so that only what is ours is looked at: segments that our processes have had, unless /dev/shm is a mount of
our own (``OWN_SHM``), and processes that have our mark in their environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from uuid import uuid4

from roboloop.core.processes import family
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.crew import WorkerPool
from roboloop.sample.group import plans
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from tests.own import open_files
from tests.sample.kit import LinearPolicy

ENV = EnvConfig(id="tiny/point")
MARK, OWN_SHM = "START_AND_STOP", "START_AND_STOP_OWN_SHM"


def segments() -> set[str]:
    """Return the files in /dev/shm that this process and those it has started hold at the moment."""
    held = set()
    for pid in family(os.getpid()):
        held |= set(open_files(pid))
        with contextlib.suppress(OSError):  # it has just ended
            held |= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {name for name in held if name.startswith("/dev/shm/")}


def marked() -> set[int]:
    """Return the other processes that have our mark, whoever is their parent by now."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found |= {int(path.parent.name)} if mark in path.read_bytes().split(b"\0") else set()
    return found - {os.getpid()}


def traces(held: set[str]) -> dict[str, list[str]]:
    """Everything that could be left behind; ``held`` are the segments that were seen in use."""
    named = os.listdir("/dev/shm") if os.environ.get(OWN_SHM) else filter(os.path.exists, held)
    return {
        "processes": sorted(map(str, marked() | set(family(os.getpid())[1:]))),
        "descriptors": sorted(d for d in open_files(os.getpid()) if re.match(r"/memfd|socket|pipe", d)),
        "segments": sorted(named),
    }


def cycle(number: int) -> set[str]:
    """Start a sampler, use it or not, and stop it: by turns in every way that a run may end; return its segments."""
    policy = LinearPolicy(2, 1)
    cfg = SampleConfig(groups=2, workers=2, free_running=bool(number % 2))
    shape = RolloutShape(make(ENV).spec, 4, 4, memory_size=policy.memory_size)
    crew = WorkerPool(ENV, plans(4, 2, 0), shape, cfg, cfg.queue if cfg.free_running else 1, [policy])
    sampler = FreeSampler(crew) if cfg.free_running else LockStepSampler(crew)
    if number % 3:
        sampler.collect(policy)
    held = segments()
    if number % 5 == 4:
        os.kill(crew.pids[0], 9)
    sampler.close()
    return held


def main(cycles: int) -> int:
    """Return how many kinds of trace have grown."""
    os.environ[MARK] = uuid4().hex
    held = cycle(0)
    before, begin_s = traces(set()), time.monotonic()
    for number in range(cycles):
        held |= cycle(number)
        if number % 50 == 49:
            print(f"{number + 1} cycles, {time.monotonic() - begin_s:.0f} s", flush=True)
    after = traces(held)
    grown = {kind: after[kind] for kind in before if after[kind] != before[kind]}
    print(f"{cycles} cycles in {time.monotonic() - begin_s:.0f} s; left behind: {grown or 'nothing'}")
    return len(grown)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
