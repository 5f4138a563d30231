"""A full disk: a clear line, exit code 5, and the last good checkpoint goes on when there is room again."""

import contextlib
import os
import subprocess
import sys

import pytest

from roboloop.core.state import equal
from tests.faults.kill_and_resume import FLAGS, remains


@contextlib.contextmanager
def small_disk(path, megabytes):
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def can_mount(path) -> bool:
    if os.geteuid() != 0:
        return False
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", str(path)], check=True)
    return done.returncode == 0


def roboloop(*args):
    return subprocess.run([sys.executable, "-m", "roboloop.cli", *args], capture_output=True, text=True, check=False)


def test_a_full_disk_leaves_the_last_good_checkpoint_and_a_clear_message(tmp_path):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("mounting a small disk needs root")
    flags = [*FLAGS, "--steps", "1200", "--experiment", "run"]
    assert roboloop("train", *flags, "--runs-dir", str(tmp_path / "roomy")).returncode == 0
    disk, ballast = tmp_path / "disk", tmp_path / "disk" / "ballast"
    with small_disk(disk, 4):
        ballast.write_bytes(bytes(4_040_000))
        done = roboloop("train", *flags, "--runs-dir", str(disk))
        assert done.returncode == 5, done.stderr
        assert done.stderr.count("\n") == 1
        assert "disk full" in done.stderr
        assert "--resume" in done.stderr
        path = disk / "run" / "Pendulum-v1" / "0"
        remains(path)  # a checkpoint verifies
        ballast.unlink()
        assert roboloop("train", "--resume", str(path)).returncode == 0
        assert equal(remains(path), remains(tmp_path / "roomy" / "run" / "Pendulum-v1" / "0"))
