"""The verb ``record`` end to end, as a user types it."""

import re
import signal
import subprocess
import sys
import time

import pytest

from roboloop.data.dataset import Dataset
from tests.cli.test_cli import TINY, roboloop

BC = (
    "--steps 300 --log-every-steps 100 --eval.every-steps 0 --eval.episodes 1 --env.eval-max-episode-steps 50"
    " --algo.processes 1 --algo.batch-size 32 --algo.hidden 32"
).split()


def test_twenty_expert_episodes_become_a_cloned_policy_without_conversion(tmp_path):
    out = tmp_path / "reach"
    done = roboloop("record", "metaworld/reach-v3", "--expert", "--episodes", 20, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    line = done.stdout.splitlines()[-1]
    assert line.startswith(f"{out}: 20 episodes, 10000 steps, mean return ")
    success = int(re.search(r"success (\d+)%, [\d.]+\w?B$", line)[1])
    assert success >= 90
    data = Dataset.open(out)
    assert data.episode(0).truncated[-1]
    assert "20 episodes, 10000 steps, all sound" in roboloop("dataset", "verify", out).stdout
    info = roboloop("dataset", "info", out).stdout
    assert "task      reach-v3: 20 episodes" in info
    assert f"success   {success}% of 20 episodes" in info
    done = roboloop("train", "bc", "--dataset", out, "--runs-dir", tmp_path, *BC)
    assert done.returncode == 0, done.stderr
    assert "done at step 300" in done.stdout
    run = tmp_path / "bc" / "reach-v3" / "0"
    done = roboloop("record", run, "--episodes", 1, "--out", tmp_path / "cloned")
    assert done.returncode == 0, done.stderr


def test_several_tasks_are_recorded_under_one_directory(tmp_path):
    tasks = ("metaworld/drawer-close-v3", "metaworld/window-open-v3")
    flags = ["--expert", "--episodes", 2, "--success-only", "--noise", 0.1, "--out", tmp_path / "all"]
    done = roboloop("record", *tasks, *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 episodes, 1000 steps") == 2
    for task in ("drawer-close-v3", "window-open-v3"):
        assert roboloop("dataset", "verify", tmp_path / "all" / task).returncode == 0


def test_the_environment_can_be_changed_where_no_run_has_settled_it(tmp_path):
    flags = ["--random", "--episodes", 1, "--env.max-episode-steps", 7, "--out", tmp_path / "short"]
    done = roboloop("record", "tiny/point", *flags)
    assert done.returncode == 0, done.stderr
    assert Dataset.open(tmp_path / "short").table["length"].tolist() == [7]


def test_a_trained_run_records_beside_its_checkpoints_with_worker_processes(tmp_path):
    done = roboloop("train", *TINY, "--experiment", "a", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "a" / "InvertedPendulum-v5" / "0"
    done = roboloop("record", run, "--episodes", 4, "--workers", 2, "--explore")
    assert done.returncode == 0, done.stderr
    assert re.search(r"recorded: 4 episodes, \d+ steps, mean return [\d.]+, success not said, [\d.]+k?B", done.stdout)


SOON_COMMITTED = """
import sys
from roboloop import cli
from roboloop.run import record

record.COMMIT_S = 0.2
sys.exit(cli.main(sys.argv[1:]))
"""
"""``roboloop`` whose recordings need not be waited for."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_was_committed_when_it_was_stopped_is_a_dataset_that_can_be_gone_on_with(tmp_path, number):
    out = tmp_path / "a"
    flags = ["record", "tiny/point", "--random", "--out", str(out), "--episodes"]
    command = [sys.executable, "-c", SOON_COMMITTED, *flags, "100000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not ((out / "index.log").exists() and (out / "index.log").stat().st_size):
        time.sleep(0.05)
    process.send_signal(number)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == (4 if number == signal.SIGINT else -9), complained
    assert complained == ""
    if number == signal.SIGINT:
        assert "stopped: the same command goes on" in said
    held = len(Dataset.open(out))
    assert held > 0
    wanted = held + 1000  # more than the whole episodes behind the last commit, which are taken up first
    assert roboloop(*flags, wanted).returncode == 0
    assert len(Dataset.open(out)) == wanted
    assert roboloop("dataset", "verify", out).returncode == 0


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["metaworld/reech-v3", "--expert"], "did you mean 'reach-v3'?"),
        (["metawolrd/reach-v3", "--random"], "did you mean 'metaworld'?"),
        (["gym/CartPole-v1", "--expert"], "no scripted expert: there are experts for metaworld/..."),
        (["metaworld/reach-v3"], "with --expert or --random"),
        (["runs/nothing"], "is not a run directory"),
        (["tiny/point", "--random", "--episodes", "0"], "--episodes must be at least 1, not 0"),
        (["tiny/point", "--random", "--episodes", "-3"], "--episodes must be at least 1, not -3"),
        (["tiny/point", "--random", "--max-attempts", "0"], "--max-attempts"),
        (["tiny/point", "--random", "--noise", "-1"], "noise must not be negative"),
        (["tiny/recall", "--random", "--noise", "2"], "at most 1"),
        (
            ["tiny/point", "--random", "--envs", "2", "--workers", "3"],
            "--workers 3 is more than --envs 2: each needs one",
        ),
        (["tiny/point", "--random", "--expert"], "choose one"),
        (["tiny/point", "--random", "--target", "3"], "--target is for the policy of a run"),
        (["tiny/point", "tiny/point", "--random"], "twice"),
        (["runs/a", "runs/b"], "takes one run"),
        (["tiny/point", "--radnom"], "did you mean '--random'?"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(args, hint, tmp_path):
    args = args if "--episodes" in args else [*args, "--episodes", "2"]
    done = roboloop("record", *args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert hint in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_existing_directory_is_refused(tmp_path):
    flags = ["record", "tiny/point", "--random", "--episodes", 2, "--out", tmp_path / "a"]
    assert roboloop(*flags).returncode == 0
    again = roboloop(*flags)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "holds 2 episodes of this recording already: nothing was changed" in again.stderr


def test_too_few_episodes_have_their_own_exit_code(tmp_path):
    flags = ["--random", "--episodes", 50, "--success-only", "--max-attempts", 60, "--out", tmp_path / "a"]
    done = roboloop("record", "tiny/recall", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (8, 1)
    held = len(Dataset.open(tmp_path / "a"))
    assert f"has {held} of 50 episodes after 60 attempts" in done.stderr
    assert held > 0
