"""The launcher against everything that runs do: end, fail, vanish, hang, swell, lie; and being killed itself."""

import json
import os
import signal
import socket
import sys
import time
from collections import Counter

from roboloop.core.config import override
from roboloop.launch.engine import Here, Local
from roboloop.launch.job import Job
from roboloop.launch.launcher import Launcher, Queue, Rules
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import Planned
from roboloop.run import recipes
from roboloop.run.config import Experiment
from tests.launch.kit import Sweep, wait_until


def test_every_run_is_started_once_the_first_seed_of_all_variants_first(tmp_path):
    sweep = Sweep(tmp_path, "3 1", {})
    code, out = sweep.run("--slots", 1)
    assert code == 0, out
    assert sweep.started() == ["gamma=0.9/3", "gamma=0.99/3", "gamma=0.9/1", "gamma=0.99/1"]
    assert out.splitlines()[-1] == "4 done"
    assert all(sweep.state(gamma, seed) == "done" for gamma in (0.9, 0.99) for seed in (1, 3))


def test_the_same_command_does_nothing_again(tmp_path):
    sweep = Sweep(tmp_path, "0", {})
    sweep.run()
    code, out = sweep.run()
    assert (code, len(sweep.started())) == (0, 2)
    assert "2 of 2 runs are done already" in out


def test_a_sweep_that_grows_runs_only_what_is_new(tmp_path):
    Sweep(tmp_path, "0", {}).run()
    grown = Sweep(tmp_path, "0 1", {}, axis="0.5 0.9 0.99")
    assert grown.run("--slots", 1)[0] == 0
    assert grown.started()[2:] == ["gamma=0.5/0", "gamma=0.5/1", "gamma=0.9/1", "gamma=0.99/1"]


def test_runs_are_kept_to_their_slots(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "done"})
    sweep.run("--slots", 1)
    threads, cpus = sweep.order.read_text().splitlines()[0].split(" ", 2)[1:]
    assert sorted(os.sched_getaffinity(0)) == json.loads(cpus)
    assert int(threads) >= 1
    assert json.loads((sweep.path(0.9, 0) / "launch" / "facts.json").read_text())["slot"] == 0


def test_a_run_that_fails_is_tried_again_and_no_more_often_than_allowed(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "fails once", 1: "fails"}, axis="0.9")
    code, out = sweep.run("--slots", 1, "--retries", 2, "--fail-fast", 0)
    assert code == 10
    assert sorted(sweep.started()) == ["gamma=0.9/0"] * 2 + ["gamma=0.9/1"] * 3
    assert "1 done, 1 failed" in out
    assert "exit code 1: RuntimeError: the simulator has exploded" in out


def test_what_would_fail_again_is_not_tried_again(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "bad input"}, axis="0.9")
    code, out = sweep.run("--retries", 5)
    assert (code, sweep.started()) == (10, ["gamma=0.9/0"])
    assert "exit code 2 (bad input): roboloop: config key 'x' is wrong" in out


def test_a_run_that_vanishes_goes_on(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "vanishes once"}, axis="0.9")
    code, out = sweep.run()
    assert (code, len(sweep.started())) == (0, 2), out
    assert "killed by SIGKILL" in out


def test_exit_code_and_status_must_both_be_good(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "lies", 1: "ends badly once"}, axis="0.9")
    code, out = sweep.run("--slots", 1, "--retries", 1, "--fail-fast", 0)
    assert code == 10
    assert sorted(sweep.started()) == ["gamma=0.9/0"] * 2 + ["gamma=0.9/1"] * 2
    assert "1 done, 1 failed" in out


def test_when_the_first_runs_die_at_once_nothing_more_is_started(tmp_path):
    sweep = Sweep(tmp_path, "0 1 2 3 4", dict.fromkeys(range(5), "fails"))
    code, out = sweep.run("--slots", 1, "--retries", 0)
    assert (code, len(sweep.started())) == (10, 3)
    assert "the first 3 runs died within 30 s: nothing more is started" in out
    # mended, the same command does it
    sweep.env["BEHAVIOUR"] = "{}"
    assert sweep.run("--slots", 2)[0] == 0


def test_one_run_that_dies_again_and_again_does_not_end_the_others(tmp_path):
    sweep = Sweep(tmp_path, "0 1 2", {0: "fails", 1: "slow"}, axis="0.9")
    code, out = sweep.run("--slots", 2, "--retries", 4)
    assert (code, "2 done, 1 failed" in out) == (10, True), out
    assert "nothing more is started" not in out
    assert sweep.started().count("gamma=0.9/0") == 5


class Crowded(Local):
    """Starts runs here, as if there were a machine for them only from a moment on."""

    def __init__(self, room_s):
        self.room_s = room_s

    def start(self, job, slot, warn):
        room_s = self.room_s

        class Waiting(Here):
            has_begun = property(lambda _: time.monotonic() > room_s)

        return Waiting(job.start(slot, warn), job)


def test_time_that_a_run_waits_for_a_machine_is_not_its_own(tmp_path, monkeypatch):
    stand_in = Sweep(tmp_path, "0", {0: "waits"})
    for name in ("BEHAVIOUR", "ORDER", "PYTHONPATH"):
        monkeypatch.setenv(name, stand_in.env[name])
    monkeypatch.setattr("roboloop.launch.job.ROBOLOOP", (sys.executable, "-m", "tests.launch.trainee"))
    config = override(Experiment(), {**recipes.load("cartpole"), "runs_dir": str(tmp_path / "runs")})
    planned, said, room_s = Planned("v", 0, {}, config), [], time.monotonic() + 3
    supply, slots = Queue([Job(planned.path, planned)]), [Slot(0, tuple(os.sched_getaffinity(0)), 1)]
    launcher = Launcher(supply, slots, Rules(timeout_s=1.0), said.append, Counter(), Crowded(room_s))
    assert launcher.run() == 10
    assert any("longer than 1 s" in line for line in said)
    assert time.monotonic() > room_s + 1


def test_a_folder_of_sweeps_is_stopped_with_its_launchers(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits", 1: "waits"}, axis="0.9")
    launcher = sweep.begin("--slots", 1)
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    assert "its launcher and all its runs save and end" in sweep.verb("stop", tmp_path / "runs")
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 4, out
    assert (sweep.state(0.9, 0), sweep.started()) == ("stopped", ["gamma=0.9/0"])


def test_sigterm_lets_every_run_save_and_the_same_command_goes_on(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits once"})
    launcher = sweep.begin("--slots", 2)
    wait_until(lambda: sweep.state(0.9, 0) == sweep.state(0.99, 0) == "running")
    launcher.send_signal(signal.SIGTERM)
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 4, out
    assert sweep.state(0.9, 0) == sweep.state(0.99, 0) == "stopped"
    assert len(sweep.started()) == 2
    assert sweep.run("--slots", 2)[0] == 0
    assert sorted(sweep.started()) == sorted(2 * ["gamma=0.9/0", "gamma=0.99/0"] + ["gamma=0.9/1", "gamma=0.99/1"])


def test_runs_outlive_a_killed_launcher_and_are_adopted(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits"}, axis="0.9")
    launcher = sweep.begin("--slots", 1)
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    launcher.kill()
    launcher.communicate()
    pid = json.loads((sweep.path(0.9, 0) / "status.json").read_text())["pid"]
    again = sweep.begin("--slots", 1)
    assert again.stdout is not None
    again.stdout.readline()
    assert again.stdout.readline().strip() == f"adopted  {sweep.path(0.9, 0)}, process {pid}"
    assert len(sweep.started()) == 1  # its slot is taken
    os.kill(pid, signal.SIGTERM)  # not by us: somebody wanted this run to stop
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 10, out
    assert (sweep.state(0.9, 0), sweep.state(0.9, 1)) == ("stopped", "done")
    assert len(sweep.started()) == 2


def test_an_adopted_run_that_vanishes_goes_on(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "waits once"}, axis="0.9")
    launcher = sweep.begin()
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    launcher.kill()
    launcher.communicate()
    again = sweep.begin()
    assert again.stdout is not None
    wait_until(lambda: again.stdout.readline().startswith("adopted"))
    os.kill(json.loads((sweep.path(0.9, 0) / "status.json").read_text())["pid"], signal.SIGKILL)
    out, _ = again.communicate(timeout=60)
    assert (again.returncode, len(sweep.started())) == (0, 2), out
    assert "its process is gone" in out


def test_two_launchers_of_one_sweep_are_one_too_many(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "waits"}, axis="0.9")
    launcher = sweep.begin()
    wait_until(lambda: sweep.state(0.9, 0) == "running")
    code, out = sweep.run()
    assert (code, out.count("\n")) == (3, 1)
    assert f"swept by process {launcher.pid} on {socket.gethostname()}: nothing was changed" in out
    launcher.terminate()
    launcher.communicate(timeout=60)


def test_stop_and_requeue_one_run_of_a_sweep(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits once", 1: "waits once"}, axis="0.9")
    launcher = sweep.begin("--slots", 2)
    wait_until(lambda: sweep.state(0.9, 0) == sweep.state(0.9, 1) == "running")
    assert "saves and ends; held" in sweep.verb("stop", sweep.path(0.9, 0))
    wait_until(lambda: sweep.state(0.9, 0) == "stopped")
    table = sweep.verb("runs", tmp_path / "runs")
    assert [line.split()[1] for line in table.splitlines()[1:3]] == ["held", "running"]
    assert "starts in its turn" in sweep.verb("requeue", sweep.path(0.9, 0))
    wait_until(lambda: sweep.state(0.9, 0) == "done")
    sweep.verb("stop", tmp_path / "runs" / "s")
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 4, out
    assert sweep.state(0.9, 1) == "stopped"


def test_a_held_run_stays_so_until_it_is_requeued(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {}, axis="0.9")
    sweep.run("--dry-run")
    assert sweep.started() == []
    sweep.run("--slots", 1, "--timeout-s", 60)
    grown = Sweep(tmp_path, "0 1 2", {2: "waits once"}, axis="0.9")
    launcher = grown.begin()
    wait_until(lambda: grown.state(0.9, 2) == "running")
    grown.verb("stop", grown.path(0.9, 2))
    out, _ = launcher.communicate(timeout=60)
    assert (launcher.returncode, "2 done, 1 held" in out) == (10, True), out
    assert grown.run()[0] == 10
    assert "starts with: roboloop sweep cartpole --name s" in grown.verb("requeue", grown.path(0.9, 2))
    assert grown.run()[0] == 0


def test_limits_of_time_memory_and_silence(tmp_path):
    slow = Sweep(tmp_path / "a", "0", {0: "waits"}, axis="0.9")
    slow.root.mkdir()
    code, out = slow.run("--timeout-s", 4)
    assert (code, len(slow.started())) == (10, 1)
    assert "longer than 4 s" in out
    big = Sweep(tmp_path / "b", "0", {0: "swells"}, axis="0.9")
    big.root.mkdir()
    assert "more memory than allowed" in big.run("--memory-mb", 150, "--retries", 0)[1]
    silent = Sweep(tmp_path / "c", "0", {0: "waits once"}, axis="0.9")
    silent.root.mkdir()
    code, out = silent.run("--silent-s", 4)
    assert (code, len(silent.started())) == (0, 2), out
    assert "it hung" in out


def test_tail_prints_what_a_run_said(tmp_path):
    sweep = Sweep(tmp_path, "0", {0: "fails"}, axis="0.9")
    sweep.run("--retries", 0)
    said = sweep.verb("tail", sweep.path(0.9, 0))
    assert said.startswith("$ roboloop train --config ")
    assert said.endswith("RuntimeError: the simulator has exploded\n")
    assert sweep.verb("tail", sweep.path(0.9, 0), "--lines", 1) == "RuntimeError: the simulator has exploded\n"
