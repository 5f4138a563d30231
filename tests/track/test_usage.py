"""What a run takes of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.processes import cpu_seconds
from roboloop.track.usage import Usage

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
SPIN = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"


def test_the_time_of_a_process_is_what_it_says_of_itself():
    spun = sum(i * i for i in range(2_000_000))
    assert spun
    own = os.times()
    assert cpu_seconds([os.getpid(), 2**30])[os.getpid()] == pytest.approx(own.user + own.system, abs=0.05)


def test_what_children_do_counts_and_a_look_too_soon_says_nothing():
    usage = Usage(every_s=0.5)
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        assert usage.look() == {}
        time.sleep(1.5)
        alone = cpu_seconds([child.pid])[child.pid]
        found = usage.look()
        assert found["cores_used"] * 1.5 >= 0.7 * alone > 0.0
        assert found["cores_used"] < 1.9
        assert usage.look() == {}
    finally:
        child.kill()
        child.wait()
    time.sleep(0.6)
    assert usage.look()["cores_used"] >= 0.0  # one that has ended takes nothing back


def test_memory_is_that_of_all_together():
    usage = Usage(every_s=0.0)
    before = usage.look()["memory_mb"]
    held = np.ones(25_000_000)  # 200 MB
    assert usage.look()["memory_mb"] - before == pytest.approx(200, abs=40)
    assert held.size
