"""Helper processes: the same bits, clear errors, no orphans."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roboloop.algos.learner.shards import HelperDied, usable_processes
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from tests.algos.test_sac import SPEC, assert_same_bits, batches

CFG = SACConfig(hidden=(48, 48), batch_size=32, processes=2)
needs_two_cores = pytest.mark.skipif(usable_processes(2, 2, "cpu") < 2, reason="needs two cores of x86 Linux")


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"timed out: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def sac() -> Iterator[Any]:
    """A SAC whose helper is ready."""
    algo = make_sac(CFG, SPEC, 1, seed=0)
    algo.update(next(batches(32)))
    wait_until(algo.trainer.pool._all_ready, "helper start")
    yield algo
    algo.close()


@needs_two_cores
def test_two_processes_give_the_bits_of_one(sac: Any) -> None:
    alone = make_sac(dataclasses.replace(CFG, processes=1), SPEC, 1, seed=9)
    alone.load(sac.state())
    source = batches(32, seed=1)
    for _ in range(20):
        batch = next(source)
        assert alone.update(batch) == sac.update(batch)
    assert_same_bits(alone.state(), sac.state())


@needs_two_cores
def test_an_idle_helper_sleeps_and_wakes(sac: Any) -> None:
    pid = sac.trainer.pool.helper_pids[0]

    def cpu_ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.1)
    before = cpu_ticks()
    time.sleep(0.5)
    assert cpu_ticks() - before <= 2
    sac.update(next(batches(32)))


@needs_two_cores
@pytest.mark.parametrize("idle_s", [0.0, 0.1])
def test_a_killed_helper_is_named_within_seconds_and_replaced(sac: Any, idle_s: float) -> None:
    pid = sac.trainer.pool.helper_pids[0]
    time.sleep(idle_s)
    os.kill(pid, signal.SIGKILL)
    start_s = time.monotonic()
    sac.update(next(batches(32)))
    assert time.monotonic() - start_s < 5.0
    (line,) = sac.messages()
    assert line.startswith(f"update helper 1 (pid {pid}) was killed by SIGKILL during 'critic_loss/gradients'")
    assert sac.trainer.pool.helper_pids[0] != pid


@needs_two_cores
def test_close_ends_the_helper(sac: Any) -> None:
    pid = sac.trainer.pool.helper_pids[0]
    sac.close()
    assert not is_running(pid)


@needs_two_cores
def test_a_killed_parent_takes_its_helper_with_it() -> None:
    script = """
from tests.algos.test_shards import CFG, SPEC, make_sac, batches, wait_until
algo = make_sac(CFG, SPEC, 1, seed=0)
source = batches(32)
algo.update(next(source))
wait_until(algo.trainer.pool._all_ready, "helper start")
print(algo.trainer.pool.helper_pids[0], flush=True)
while True:
    algo.update(next(source))
"""
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root)
    assert parent.stdout is not None
    helper_pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(helper_pid), "helper outlives its parent", timeout_s=5.0)


@needs_two_cores
def test_a_helper_that_raises_sends_its_traceback(sac: Any) -> None:
    sac.trainer.pool._post(200, sac.trainer.pool._helpers)  # a phase that does not exist
    with pytest.raises(HelperDied, match=r"exit code 1.*\n(.*\n)*.*IndexError"):
        sac.trainer.pool._wait(0, sac.trainer.pool._helpers[0], "no such phase")


def test_processes_are_clipped_to_shards_and_cores() -> None:
    assert usable_processes(64, 1, "cpu") == 1
    assert usable_processes(64, 64, "cpu") <= len(os.sched_getaffinity(0))
    assert usable_processes(2, 2, "cuda") == 1
