"""What samplers leave behind is looked for in a process of its own, and where that can be in a /dev/shm of its own."""

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults import start_and_stop
from tests.faults.start_and_stop import segments, traces
from tests.faults.test_small_shm import can_mount

CYCLES = 15
COMMAND = [sys.executable, "-m", "tests.faults.start_and_stop", str(CYCLES)]
WITH_A_SHM_OF_ITS_OWN = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]


def test_starting_and_stopping_samplers_leaves_no_process_descriptor_or_segment():
    inside = WITH_A_SHM_OF_ITS_OWN if can_mount() else []
    env = os.environ | ({start_and_stop.OWN_SHM: "1"} if inside else {})
    done = subprocess.run([*inside, *COMMAND], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{CYCLES} cycles")


@pytest.fixture
def others():
    """Segments that this process held before: fixtures of other tests may have some open."""
    return segments()


@pytest.fixture
def segment(monkeypatch, others):
    """A file in the /dev/shm of the whole machine."""
    monkeypatch.setenv(start_and_stop.MARK, uuid4().hex)
    path = Path(f"/dev/shm/start-stop-{uuid4().hex}")
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield path
    path.unlink()


def test_a_segment_that_no_process_of_ours_has_had_is_a_neighbours(segment, others):
    assert traces(segments() - others)["segments"] == []


def test_a_segment_that_we_had_and_that_is_still_there_is_found(segment, others):
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        held = segments()
    assert traces(held - others)["segments"] == [str(segment)]


def test_a_process_of_ours_is_found_even_when_its_parent_has_gone(segment):
    begin = "sleep 60 >/dev/null 2>&1 & echo $!"
    orphan = int(subprocess.run(["sh", "-c", begin], capture_output=True, check=True).stdout)
    try:
        assert str(orphan) in traces(set())["processes"]
    finally:
        os.kill(orphan, signal.SIGKILL)
