import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ray.kit import Cluster

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[2]
BASE = """
base:
  env: {id: tiny/point, num_envs: 2}
  algo: {name: ppo, rollout_steps: 16, minibatches: 1, epochs: 1, hidden: [8], processes: 1}
  eval: {every_steps: 0, episodes: 2}
  checkpoint: {every_steps: 64, every_s: 0}
  tensorboard: false
axes: {algo.gamma: [0.9, 0.99]}
seeds: 2
"""


def command(root: Path, where: str, steps: int) -> list[str]:
    (root / "s.yaml").write_text(BASE)
    words = ["sweep", str(root / "s.yaml"), "--on", where, "--runs-dir", str(root / "runs"), "--steps", str(steps)]
    return [sys.executable, "-m", "roboloop.cli", *words]


def begin(root: Path, where: str, steps: int, *more: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*command(root, where, steps), *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def runs(root: Path) -> list[Path]:
    return sorted(p.parent for p in (root / "runs" / "s").rglob("status.json"))


def state(run: Path) -> str:
    return str(json.loads((run / "status.json").read_text())["state"])


def on_the_way(root: Path) -> list[Path]:
    return [run for run in runs(root) if state(run) == "running" and list(run.glob("checkpoints/step-*"))]


def wait_for(is_so, limit_s=90.0):
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.1)


def test_a_sweep_whose_machine_dies_loses_no_run_and_equals_an_undisturbed_one(cluster: Cluster, tmp_path: Path):
    steps = 8_000
    launcher = begin(tmp_path, cluster.address, steps)
    try:
        wait_for(lambda: launcher.poll() is not None or on_the_way(tmp_path))
        if launcher.poll() is None:
            victim = on_the_way(tmp_path)[0]
            cluster.kill(node_of(cluster, int(json.loads((victim / "status.json").read_text())["pid"])))
        out, _ = launcher.communicate(timeout=150)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, out
    assert "its machine was lost" in out, out
    assert "it goes on elsewhere" in out
    assert [state(run) for run in runs(tmp_path)] == ["done"] * 4
    alone = tmp_path / "alone"
    subprocess.run(
        [sys.executable, "-m", "roboloop.cli", "train", "--config", str(victim / "launch" / "config.yaml"),
         "--runs-dir", str(alone)], check=True, capture_output=True, cwd=ROOT,
    )  # fmt: skip
    (undisturbed,) = alone.rglob("metrics.jsonl")
    assert undisturbed.read_bytes() == (victim / "metrics.jsonl").read_bytes()


def node_of(cluster: Cluster, pid: int) -> str:
    """Return the machine on which a run's process was started: the raylet is its grandparent."""
    family = [pid]
    while family[-1] > 1:
        family.append(int(Path(f"/proc/{family[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    for node in cluster.nodes:
        if any(info.process.pid in family for info in node.all_processes["raylet"]):
            return str(node.node_id)
    raise AssertionError(f"process {pid} is of no machine")


def test_ctrl_c_lets_runs_in_the_cluster_save_and_the_same_command_goes_on(cluster: Cluster, tmp_path: Path):
    launcher = begin(tmp_path, cluster.address, 100_000, "--slots", "2")
    try:
        wait_for(lambda: len(on_the_way(tmp_path)) == 2)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode == 4, out
    assert {state(run) for run in runs(tmp_path)} == {"stopped"}


def test_a_storage_that_a_machine_does_not_see_is_one_line(tmp_path: Path):
    from roboloop.launch.engine import Trial

    errand = {"path": str(tmp_path / "elsewhere"), "config": {}, "cwd": str(tmp_path), "token": "x"}
    before = Path.cwd()
    try:
        said = Trial().start(errand, 1, None)["error"]
    finally:
        os.chdir(before)
    assert f"does not see {tmp_path / 'elsewhere'}: " in said
    assert "storage that all its machines share" in said


def test_submitit_brings_runs_to_their_end_without_slurm(tmp_path: Path):
    pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
    launcher = begin(tmp_path, "slurm:local", 64, "--slots", "2", "--seeds", "0")
    out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out
    assert [state(run) for run in runs(tmp_path)] == ["done"] * 2
