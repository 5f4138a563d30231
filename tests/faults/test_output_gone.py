"""Nobody reads any more what we print: lists end quietly, work is done to its end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROBOLOOP = [sys.executable, "-m", "roboloop.cli"]
FLAGS = (
    "--env gym/Pendulum-v1 --env.max-episode-steps 40 --env.eval-max-episode-steps 40 --warmup-steps 60"
    " --log-every-steps 50 --trackers --algo.hidden 16 16 --algo.batch-size 16 --algo.processes 1"
    " --eval.every-steps 200 --eval.episodes 1 --steps 600"
).split()


def state(runs: Path) -> tuple[str, int]:
    status = json.loads((runs / "default" / "Pendulum-v1" / "0" / "status.json").read_text())
    return status["state"], status["step"]


@pytest.mark.parametrize("errors", [None, subprocess.STDOUT], ids=["stdout", "and stderr"])
def test_a_run_whose_output_nobody_reads_trains_to_its_end(tmp_path, errors):
    process = subprocess.Popen(
        [*ROBOLOOP, "train", *FLAGS, "--runs-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=errors
    )
    assert process.stdout is not None
    process.stdout.readline()  # as head -1 does
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert state(tmp_path) == ("done", 600)


def test_a_run_whose_output_nobody_reads_still_ends_by_its_own_state(tmp_path):
    process = subprocess.Popen(
        [*ROBOLOOP, "train", *FLAGS, "--steps", "1000000", "--runs-dir", str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.stdout.close()
    wait_for_steps(tmp_path)
    process.terminate()
    assert process.wait(timeout=60) == 4
    assert state(tmp_path)[0] == "stopped"


def wait_for_steps(runs: Path) -> None:
    for _ in range(600):
        try:
            if state(runs)[1] > 100:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise AssertionError("it does not train")


def test_a_run_whose_terminal_is_closed_trains_to_its_end(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*ROBOLOOP, "train", *FLAGS, "--steps", "3000", "--runs-dir", str(tmp_path)])
    os.read(terminal, 100)
    os.close(terminal)  # the kernel sends SIGHUP, and writing fails from now on
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert state(tmp_path) == ("done", 3000)


@pytest.mark.parametrize("args", [["envs"], ["recipes"], ["--help"]], ids=lambda args: args[0])
def test_a_list_that_nobody_reads_ends_quietly(args):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*ROBOLOOP, *args], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_broken_pipe_that_is_not_our_output_is_no_success(monkeypatch):
    from roboloop import cli

    def break_pipe(args: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setitem(cli.VERBS, "envs", (break_pipe, ""))
    with pytest.raises(BrokenPipeError):
        cli.main(["envs"])


def test_a_childs_broken_pipe_is_no_success_though_nobody_reads_our_output_either():
    script = (
        "from roboloop import cli\n"
        "def child_gone(args): raise BrokenPipeError\n"
        "cli.VERBS['train'] = (child_gone, '')\n"
        "raise SystemExit(cli.main())"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script, "train"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert b"BrokenPipeError" in done.stderr


def test_the_signal_of_a_closed_terminal_is_ignored_by_work_alone():
    script = (
        "import signal; from roboloop import cli;"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # the tests may run under nohup
        "cli.VERBS['record'] = cli.VERBS['envs'] ="
        " (lambda args: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) or 0, '');"
        "cli.main()"
    )
    said = [
        subprocess.run([sys.executable, "-c", script, verb], capture_output=True, text=True, check=True).stdout
        for verb in ("record", "envs")
    ]
    assert said == ["True\n", "False\n"]
