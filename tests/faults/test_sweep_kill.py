"""A sweep whose launcher and one of whose runs are killed: the same command finishes it, and no bit is other."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from roboloop.launch.sweep import expand, read_sweep
from roboloop.track.read import read_jsonl
from tests.launch.kit import wait_until
from tests.run.helpers import train

FILE = """
name: lr
base: {steps: 600, warmup_steps: 60, log_every_steps: 50, trackers: [], env: {id: tiny/point},
       algo: {hidden: [16, 16], batch_size: 16, processes: 1}, replay: {capacity: 2000},
       eval: {every_steps: 200, episodes: 2}, checkpoint: {every_steps: 100, every_s: 0}}
axes: {algo.actor_lr: [1.0e-3, 1.0e-4]}
seeds: 3
"""


def sweep(root: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "roboloop.cli", "sweep", str(root / "lr.yaml"), "--slots", "2"]
    return subprocess.Popen([*command, "--runs-dir", str(root / "runs")], stdout=subprocess.PIPE, text=True)


def test_killed_launcher_and_killed_run_leave_no_trace(tmp_path):
    (tmp_path / "lr.yaml").write_text(FILE)
    runs = expand(read_sweep(tmp_path / "lr.yaml"))
    paths = [tmp_path / run.path for run in runs]
    launcher = sweep(tmp_path)
    victim = paths[0]
    try:
        wait_until(lambda: len(read_jsonl(victim / "metrics.jsonl")) >= 3, seconds=300)
        pid = json.loads((victim / "status.json").read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)  # so that it does not end before it is killed
    finally:
        launcher.kill()
        launcher.communicate()
    os.kill(pid, signal.SIGKILL)
    assert len(read_jsonl(victim / "metrics.jsonl")) < 15  # it was in the middle

    again = sweep(tmp_path)
    out, _ = again.communicate(timeout=900)
    assert again.returncode == 0, out
    assert out.splitlines()[-1] == "6 done"
    for run, path in zip(runs, paths, strict=True):
        undisturbed = train(replace(run.config, runs_dir=str(tmp_path / "alone")))
        assert (path / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()
        starts = (path / "launch" / "output.log").read_text().count("$ roboloop train")
        assert starts == (2 if path == victim else 1)
    assert "resumed at step" in (victim / "launch" / "output.log").read_text()
    assert sweep(tmp_path).communicate(timeout=60)[0].splitlines()[-1] == "6 done"
