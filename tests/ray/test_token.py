"""Ray lets in whoever has its token: a cluster of our own leaves none behind, others are joined by theirs."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.core.cluster import LOOPBACK, LOOPBACK_ONLY

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.alone
JOIN = "import sys; from roboloop.core.cluster import connect; print(len(connect(sys.argv[1])[0].nodes()))"


def home_of(root: Path, token: str = "") -> dict[str, str]:
    """Return the environment of a user who has a token, or none."""
    if token:
        (root / ".ray").mkdir()
        (root / ".ray" / "auth_token").write_text(token)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {**kept, "HOME": str(root), "RAY_USAGE_STATS_ENABLED": "0", LOOPBACK_ONLY: "0"}


def join(address: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JOIN, address]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_cluster_of_our_own_leaves_no_token_for_later_ones_to_ask_for(tmp_path):
    done = join("", home_of(tmp_path))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert not (tmp_path / ".ray" / "auth_token").exists()


def begin(env: dict[str, str]) -> tuple[subprocess.Popen[str], int]:
    """Begin a cluster as a user does, on a port that was free a moment ago."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--port={port}", f"--node-ip-address={LOOPBACK}", "--num-cpus=0", "--include-dashboard=false", "--block"]
    flags += ["--min-worker-port=0", "--max-worker-port=0"]  # any that are free: the default ones may be another's
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *flags]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), port


@pytest.mark.parametrize("token", ["", "0123456789abcdef" * 4], ids=["without a token", "with a token"])
def test_a_cluster_that_ray_start_began_is_joined_as_it_was_begun(tmp_path, token):
    env = home_of(tmp_path, token)
    head, port = begin(env)
    again = 2  # somebody else may take the port before it does
    try:
        deadline_s = time.monotonic() + 60
        while (done := join(f"ray://{LOOPBACK}:{port}", env)).returncode and time.monotonic() < deadline_s:
            if head.poll() is not None:
                said, again = head.communicate()[0], again - 1
                assert again >= 0, said
                head, port = begin(env)
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    finally:
        head.terminate()
        head.communicate(timeout=60)
