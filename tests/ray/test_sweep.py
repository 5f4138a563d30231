import contextlib
import json
import os
import re
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
  trackers: []
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
    # not rglob: checkpoints go while it walks
    return sorted(p.parent for p in (root / "runs" / "s").glob("*/*/*/status.json"))


def state(run: Path) -> str:
    return str(json.loads((run / "status.json").read_text())["state"])


def on_the_way(root: Path) -> list[Path]:
    return [run for run in runs(root) if state(run) == "running" and list(run.glob("checkpoints/step-*"))]


def frozen(root: Path) -> Path | None:
    """Stop a run on its way as it is, so that it does not end before its machine does; none if there is none."""
    for run in on_the_way(root):
        pid = int(json.loads((run / "status.json").read_text())["pid"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            if state(run) == "running":
                return run
            os.kill(pid, signal.SIGCONT)
    return None


def wait_for(is_so, limit_s=90.0):
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.1)


def test_a_sweep_whose_machine_dies_loses_no_run_and_equals_an_undisturbed_one(cluster: Cluster, tmp_path: Path):
    launcher = begin(tmp_path, cluster.address, 8_000)
    try:
        victim = None
        while victim is None:
            wait_for(lambda: launcher.poll() is not None or on_the_way(tmp_path))
            assert launcher.poll() is None, launcher.communicate()[0]
            victim = frozen(tmp_path)
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


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def node_of(cluster: Cluster, pid: int) -> str:
    """Return the machine on which a run's process was started: the raylet is its grandparent."""
    family = [pid]
    while family[-1] > 1:
        family.append(parent(family[-1]))
    for node in cluster.nodes:
        if any(info.process.pid in family for info in node.all_processes["raylet"]):
            return str(node.node_id)
    raise AssertionError(f"process {pid} is of no machine")


def test_ctrl_c_lets_runs_in_the_cluster_save_and_the_same_command_goes_on(cluster: Cluster, tmp_path: Path):
    for resumed in (0, 2):
        launcher = begin(tmp_path, cluster.address, 100_000, "--slots", "2")
        try:
            wait_for(lambda n=resumed: len(on_the_way(tmp_path)) == 2 and times_resumed(tmp_path) == n)
            launcher.send_signal(signal.SIGINT)
            out, _ = launcher.communicate(timeout=60)
        finally:
            launcher.kill()
        assert launcher.returncode == 4, out
        assert [state(run) for run in runs(tmp_path)] == ["stopped"] * 2


def times_resumed(root: Path) -> int:
    logs = [run / "launch" / "output.log" for run in runs(root)]
    return sum(len(re.findall(r"resumed at step [1-9]", log.read_text())) for log in logs)


def test_a_start_that_always_fails_is_no_lost_machine_and_ends_the_sweep_with_its_cause(
    cluster: Cluster, tmp_path: Path
):
    for gamma in (0.9, 0.99):
        for seed in (0, 1):  # where the run's log should be is something else, so that no machine can open it
            (tmp_path / "runs" / "s" / f"gamma={gamma}" / "point" / str(seed) / "launch" / "output.log").mkdir(
                parents=True
            )
    launcher = begin(tmp_path, cluster.address, 64)
    try:
        out, _ = launcher.communicate(timeout=90)
    finally:
        launcher.kill()
    assert launcher.returncode == 10, out
    assert "output.log is not a regular file" in out
    assert "runs died within 30 s: nothing more is started" in out
    assert "its machine was lost" not in out


def test_a_machine_that_joins_later_is_used(tmp_path: Path):
    cluster = Cluster(nodes=1, cpus=1)
    launcher = begin(tmp_path, cluster.address, 1_000_000)
    try:
        wait_for(lambda: launcher.poll() is not None or len(on_the_way(tmp_path)) == 1)
        cluster.add()
        wait_for(lambda: launcher.poll() is not None or len(on_the_way(tmp_path)) == 2)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        cluster.close()
    assert launcher.returncode == 4, out
    assert "Ray, 2 machines with 1 CPUs; 1 runs at a time" in out
    assert [state(run) for run in runs(tmp_path)] == ["stopped"] * 2


def test_runs_that_fit_on_no_machine_are_refused(cluster: Cluster, tmp_path: Path):
    launcher = begin(tmp_path, cluster.address, 64, "--cores-per-run", "3", "--dry-run")
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 2, out
    assert "one needs 3 CPU, a machine has at most 2 CPU" in out


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


def test_a_run_saves_when_slurm_warns_that_its_time_is_nearly_over(tmp_path: Path):
    pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
    launcher = begin(tmp_path, "slurm:local", 100_000, "--slots", "1", "--seeds", "0")
    try:
        wait_for(lambda: on_the_way(tmp_path))
        (run,) = runs(tmp_path)
        os.kill(parent(json.loads((run / "status.json").read_text())["pid"]), signal.SIGUSR2)
        wait_for(lambda: state(run) != "running")
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert state(run) == "stopped", out
