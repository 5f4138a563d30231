"""The table of runs: those that were begun, those that wait, and what their processes take."""

import os
import signal
import subprocess
import sys

from roboloop.core.processes import family, memory_bytes
from roboloop.launch import plan
from roboloop.launch.watch import look, show
from roboloop.track.read import find_runs
from tests.launch.kit import Sweep, wait_until


def test_runs_that_wait_are_listed_too(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits"})
    launcher = sweep.begin("--slots", 1)
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    rows = {f"{row.path.parts[-3]}/{row.path.name}": row for row in look(tmp_path / "runs")}
    assert {name: row.state for name, row in rows.items()} == {
        "gamma=0.9/0": "running", "gamma=0.99/0": "queued", "gamma=0.9/1": "queued", "gamma=0.99/1": "queued",
    }  # fmt: skip
    running = rows["gamma=0.9/0"]
    assert (running.slot, running.steps) == (0, 100)
    assert running.memory_bytes is not None
    assert 5e6 < running.memory_bytes < 5e8
    text = show(tmp_path / "runs")
    # 4 runs of 100 steps, one step made, ten steps a second
    assert text.splitlines()[-1] == "4 runs: 3 queued, 1 running; ETA 0:00:40"
    assert "s/gamma=0.9/CartPole-v1/0" in text
    assert len(look(tmp_path / "runs" / "s")) == 4
    assert len(look(tmp_path / "runs" / "s" / "gamma=0.9")) == 2
    assert (plan.launcher_of(tmp_path / "runs" / "s") or [None])[0] == launcher.pid
    launcher.terminate()
    launcher.communicate(timeout=60)
    assert plan.launcher_of(tmp_path / "runs" / "s") is None


def test_a_run_that_failed_before_it_began_is_failed_and_its_launch_folder_no_run(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "fails"}, axis="0.9")
    assert sweep.run("--retries", 0)[0] == 10
    assert [(row.path.name, row.state) for row in look(tmp_path / "runs")] == [("1", "done"), ("0", "failed")]
    sweep.env["BEHAVIOUR"] = '{"0": "waits"}'
    launcher = sweep.begin()
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    assert {row.path.name: row.state for row in look(tmp_path / "runs")} == {"0": "running", "1": "done"}
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)


def test_an_experiment_may_be_called_launch(tmp_path):
    run = tmp_path / "launch" / "task" / "0"
    run.mkdir(parents=True)
    (run / "status.json").write_text('{"state": "done", "step": 1, "steps": 1}')
    assert [info.path for info in find_runs(tmp_path)] == [run]


def test_variants_of_a_sweep_are_named_after_it(tmp_path):
    Sweep(tmp_path, "0", {}).run()
    assert [info.experiment for info in find_runs(tmp_path / "runs")] == ["s/gamma=0.9", "s/gamma=0.99"]


def test_watching_prints_again_and_ends_with_ctrl_c(tmp_path):
    sweep = Sweep(tmp_path, "0", {}, axis="0.9")
    sweep.run()
    command = [sys.executable, "-m", "roboloop.cli", "runs", str(tmp_path / "runs"), "--watch", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=sweep.env)
    assert process.stdout is not None
    heads = 0
    while heads < 2:
        heads += process.stdout.readline().startswith("run ")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_memory_is_that_of_a_process_and_its_children_what_they_share_once(tmp_path):
    for pid, (parent, alone, shared) in {7: (1, 10, 50), 8: (7, 20, 40), 9: (8, 30, 0), 10: (1, 99, 99)}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 0 0")
        (tmp_path / str(pid) / "status").write_text(f"RssAnon: {alone} kB\nRssFile: {shared} kB\nRssShmem: 1 kB\n")
    assert family(7, tmp_path) == [7, 8, 9]
    assert memory_bytes(7, tmp_path) == (10 + 20 + 30 + 51) * 1024
    assert memory_bytes(11, tmp_path) is None
    assert (memory_bytes(os.getpid()) or 0) > 1e6
