"""Children that die or hang: one line is said, a new one takes over, and no bit of training changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.core.config import override
from roboloop.core.errors import WorkerLost
from roboloop.core.state import equal
from roboloop.run.background import BackgroundEvaluator
from roboloop.run.config import Experiment
from roboloop.track.terminal import Progress
from tests.algos.test_shards import needs_two_cores
from tests.conftest import TINY
from tests.faults import kill_and_resume
from tests.run.helpers import remains, train
from tests.run.test_resume import assert_same

BESIDE = {"steps": 250, "eval": {"every_steps": 100, "episodes": 2, "background": True}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose evaluation process lives."""
    return train(override(Experiment(), {**TINY, **BESIDE, "runs_dir": str(tmp_path_factory.mktemp("whole"))}))


@pytest.fixture
def messages(monkeypatch):
    """What a run prints as lines that stay."""
    lines: list[str] = []
    monkeypatch.setattr(Progress, "note", lambda self, text: lines.append(text))
    return lines


def signal_evaluator(monkeypatch, number, before):
    """Send a signal to the evaluation process right before its last request, or before its first result is asked."""
    calls = []
    real = getattr(BackgroundEvaluator, before)

    def hooked(self, *args):
        calls.append(before)
        if len(calls) == (2 if before == "begin" else 1):
            os.kill(self._child.pid, number)
            if number == signal.SIGKILL and before == "begin":
                self._child._process.wait()  # it is idle: dead before anything is sent
        return real(self, *args)

    monkeypatch.setattr(BackgroundEvaluator, before, hooked)


@pytest.mark.parametrize("before", ["begin", "result"])
def test_a_killed_evaluation_process_is_named_and_replaced_and_the_log_is_the_same(
    tiny, whole, monkeypatch, messages, before
):
    signal_evaluator(monkeypatch, signal.SIGKILL, before)
    broken = train(tiny(experiment="broken", **BESIDE))
    lines = [line for line in messages if "evaluation process" in line]
    assert len(lines) == 1
    assert "was killed by SIGKILL; a new one evaluates again" in lines[0]
    assert_same(whole, broken)


def test_a_stopped_evaluation_process_is_named_and_replaced_within_the_limit(tiny, whole, monkeypatch, messages):
    signal_evaluator(monkeypatch, signal.SIGSTOP, "begin")
    began_s = time.monotonic()
    broken = train(tiny(experiment="broken", **BESIDE, sample={"hang_s": 1.0}))
    assert time.monotonic() - began_s < 100.0
    lines = [line for line in messages if "evaluation process" in line]
    assert len(lines) == 1
    assert "it is stopped (SIGSTOP, or a debugger); a new one evaluates again" in lines[0]
    assert remains(whole)["metrics"] == remains(broken)["metrics"]


def test_an_evaluation_process_lost_three_times_ends_the_run_in_one_line(tiny, monkeypatch, messages):
    real = BackgroundEvaluator._await
    monkeypatch.setattr(
        BackgroundEvaluator, "_await", lambda self, child: (os.kill(child.pid, signal.SIGKILL), real(self, child))[1]
    )
    with pytest.raises(WorkerLost, match=r"killed by SIGKILL\nlost 3 times in one evaluation") as lost:
        train(tiny(**BESIDE))
    assert lost.value.exit_code == 7


def test_a_long_evaluation_is_not_taken_for_a_hung_one(tiny, monkeypatch, messages):
    slow = {"every_steps": 200, "episodes": 20, "background": True}  # far longer than the limit between two steps
    train(tiny(steps=200, eval=slow, env={"eval_max_episode_steps": 1000}, sample={"hang_s": 0.5}))
    assert not [line for line in messages if "evaluation process" in line]


def helper_of(pid: int) -> int | None:
    """Return the update helper of a training process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        with contextlib.suppress(OSError):  # another child, which has just ended
            if "shard_helper" in Path(f"/proc/{child}/cmdline").read_text():
                return child
    return None


@needs_two_cores
def test_a_run_whose_update_helper_is_killed_says_so_and_ends_as_one_whose_helper_lives(tmp_path):
    flags = [*kill_and_resume.FLAGS, "--steps", "1500", "--runs-dir", str(tmp_path)]
    whole = kill_and_resume.start([*flags, "--experiment", "whole"])
    assert whole.wait() == 0
    command = [sys.executable, "-m", "roboloop.cli", "train", *flags, "--experiment", "killed", "--algo.processes", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lost = []
        while len(lost) < 2 and process.poll() is None:
            helper = helper_of(process.pid)
            if helper is not None and helper not in lost:
                time.sleep(0.3 if lost else 0.1)  # the first has hardly begun
                os.kill(helper, signal.SIGKILL)
                lost.append(helper)
            time.sleep(0.02)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    lines = [line for line in said.splitlines() if "update helper" in line]
    assert len(lines) == len(lost) == 2
    for number, (line, pid) in enumerate(zip(lines, lost, strict=True), start=1):
        assert f"update helper 1 (pid {pid}) was killed by SIGKILL during" in line
        assert f"; a new one takes over ({number} of at most 10)" in line
    a, b = (kill_and_resume.remains(tmp_path / name / "Pendulum-v1" / "0") for name in ("whole", "killed"))
    assert equal(a, b)
