"""What a run takes of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.core.processes import cpu_seconds
from roboloop.track.usage import Usage

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
SPIN = "import time\nwhile time.process_time() < 30: pass"


def test_the_time_of_a_process_is_what_it_says_of_itself():
    spun = sum(i * i for i in range(2_000_000))
    assert spun
    own = os.times()
    assert cpu_seconds([os.getpid(), 2**30])[os.getpid()] == pytest.approx(own.user + own.system, abs=0.05)


class Clock:
    """Tells the time that the test has set: how long things take on a busy machine is of no account."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_what_children_do_counts_and_a_look_too_soon_says_nothing(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("roboloop.track.usage.time", clock)
    usage, before_s = Usage(every_s=0.5), time.process_time()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        clock.now_s = 0.4
        assert usage.look() == {}
        while (taken_s := cpu_seconds([child.pid])[child.pid]) < 0.5:
            time.sleep(0.05)
        clock.now_s = 2.0
        found = usage.look()
        at_most_s = cpu_seconds([child.pid])[child.pid] + time.process_time() - before_s
        assert taken_s <= found["cores_used"] * 2.0 <= at_most_s + 0.5  # what others of our family may have done
        assert usage.look() == {}
    finally:
        child.kill()
        child.wait()
    clock.now_s = 3.0
    assert usage.look()["cores_used"] >= 0.0  # one that has ended takes nothing back


HOLD = """
import numpy as np
from roboloop.track.usage import Usage

usage = Usage(every_s=0.0)
before = usage.look()["memory_mb"]
held = np.ones(25_000_000)  # 200 MB
print(usage.look()["memory_mb"] - before, held.size)
"""


def test_memory_is_that_of_all_together():
    done = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[0]) == pytest.approx(200, abs=40)
