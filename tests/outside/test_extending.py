"""The files of ``docs/extending.md`` work as they stand there."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from roboloop.track.read import read_jsonl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
VECTOR = "A simulator that steps many environments at once"
SMALL = (
    "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40", "--steps", "300", "--warmup-steps", "60",
    "--eval.episodes", "2", "--eval.every-steps", "150", "--checkpoint.every-steps", "50", "--trackers",
)  # fmt: skip


def file_of(title: str) -> str:
    """Return the first whole Python file below a title."""
    text = re.split(rf"\n##+ {re.escape(title)}\n", PAGE)[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


def run_there(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command as the installed script does: the folder is not on Python's path."""
    command = [sys.executable, "-P", "-m", "roboloop.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)


def test_the_algorithm_of_the_page_trains_shows_its_keys_and_resumes(tmp_path):
    (tmp_path / "my_ddpg.py").write_text(file_of("Your own algorithm"))
    words = ("train", "--algo", "my_ddpg:SPEC", "--env", "gym/Pendulum-v1", *SMALL)
    done = run_there(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "Pendulum-v1" / "0"
    shown = run_there(tmp_path, *words, "--help").stdout
    assert "--algo.hidden 64 64" in shown
    assert "Widths of the hidden layers." in shown
    assert run_there(tmp_path, "eval", run, "--episodes", "1").returncode == 2  # nobody vouches for a saved name
    assert run_there(tmp_path, "eval", run, "--episodes", "1", "--trust").returncode == 0
    assert run_there(tmp_path, *words, "--runs-dir", "b", "--steps", "150").returncode == 0
    part = tmp_path / "b" / "default" / "Pendulum-v1" / "0"
    assert run_there(tmp_path, "train", "--resume", part, "--steps", "300", "--trust").returncode == 0
    last = Path("checkpoints") / "step-000000000300" / "state.safetensors"
    assert (part / last).read_bytes() == (run / last).read_bytes()


def test_the_offline_learner_of_the_page_learns_from_a_dataset_and_resumes(tmp_path):
    (tmp_path / "my_offline.py").write_text(file_of("Your own offline learner"))
    made = ("record", "gym/Pendulum-v1", "--random", "--episodes", "4", "--env.max-episode-steps", "40", "--out", "D")
    assert run_there(tmp_path, *made).returncode == 0
    words = ("train", "--algo", "my_offline:SPEC", "--dataset", "D", *SMALL[4:6], *SMALL[8:])
    done = run_there(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "Pendulum-v1" / "0"
    rows = read_jsonl(run / "metrics.jsonl")
    assert any(key.endswith("value_loss") for row in rows for key in row)
    assert run_there(tmp_path, *words, "--runs-dir", "b", "--steps", "150").returncode == 0
    part = tmp_path / "b" / "default" / "Pendulum-v1" / "0"
    assert run_there(tmp_path, "train", "--resume", part, "--steps", "300", "--trust").returncode == 0
    last = Path("checkpoints") / "step-000000000300" / "state.safetensors"
    assert (part / last).read_bytes() == (run / last).read_bytes()


def test_the_algorithm_from_rollouts_trains_also_with_memory_and_resumes(tmp_path):
    (tmp_path / "my_a2c.py").write_text(file_of("From rollouts"))
    size = ("--env", "gym/CartPole-v1", "--env.num-envs", "4", *SMALL, "--log-every-steps", "50", "--algo.hidden", "16")
    for core in ("none", "gru"):
        words = (
            "train",
            "--algo",
            "my_a2c:SPEC",
            *size,
            "--algo.core",
            core,
            "--algo.core-size",
            "8",
            "--experiment",
            core,
        )
        done = run_there(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        whole, part = (tmp_path / where / core / "CartPole-v1" / "0" for where in ("runs", "b"))
        assert any("entropy" in name for row in read_jsonl(whole / "metrics.jsonl") for name in row)
        assert run_there(tmp_path, *words, "--runs-dir", "b", "--steps", "160").returncode == 0
        assert run_there(tmp_path, "train", "--resume", part, "--steps", "300", "--trust").returncode == 0
        last = sorted((whole / "checkpoints").iterdir())[-1].name
        states = [(run / "checkpoints" / last / "state.safetensors").read_bytes() for run in (whole, part)]
        assert states[0] == states[1]


def test_the_tracker_of_the_page_mirrors_a_run_and_its_resume(tmp_path):
    (tmp_path / "my_csv.py").write_text(file_of("Your own tracker"))
    words = ("--env", "gym/Pendulum-v1", *SMALL, "--trackers", "my_csv:CSV", *SAC)
    done = run_there(tmp_path, "train", *words, "--log-every-steps", "50", "--steps", "150")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "Pendulum-v1" / "0"
    assert run_there(tmp_path, "train", "--resume", run, "--steps", "300").returncode == 2  # nobody vouches for it
    assert run_there(tmp_path, "train", "--resume", run, "--steps", "300", "--trust").returncode == 0
    with open(run / "metrics.csv", newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["step", "name", "value"]
    rows = read_jsonl(run / "metrics.jsonl")
    numbers = [(row["step"], key, value) for row in rows for key, value in row.items() if isinstance(value, float)]
    mirrored = [(int(step), name, float(value)) for step, name, value in lines]
    assert [each for each in mirrored if each in numbers] == numbers
    assert max(step for step, _, _ in mirrored) == 300


NAMES = {
    "Your own environment": "my_envs.py",
    "Your own suite": "my_suite.py",
    "Your own reward, auxiliary tasks and expert": "my_rewards.py",
    "Your own robot": "my_arm.py",
}
TRAINED = {
    "train": (
        "--steps", "150", "--warmup-steps", "60", "--eval.every-steps", "0", "--trackers",
        "--env.max-episode-steps", "30", "--env.eval-max-episode-steps", "30",
    ),
    "record": ("--episodes", "2"),
    "check": ("--steps", "100"),
}  # fmt: skip
SAC = ("--algo.hidden", "16", "--algo.batch-size", "16", "--algo.processes", "1")
LFGP = ("--algo.sac.hidden", "16", "--algo.sac.batch-size", "16", "--algo.discriminator.hidden", "16")


def commands_of(title: str) -> list[list[str]]:
    """Return the commands below a title."""
    text = re.split(rf"\n##+ {re.escape(title)}\n", PAGE)[1].split("\n## ")[0]
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("roboloop ")]


@pytest.mark.parametrize("title", NAMES)
def test_the_file_and_the_commands_of_the_page_work_in_the_folder_of_the_file(tmp_path, title):
    (tmp_path / NAMES[title]).write_text(file_of(title))
    commands = commands_of(title)
    assert len(commands) >= 1
    for number, words in enumerate(commands):
        small = next(small for verb, small in TRAINED.items() if verb in words[:2])
        sizes = () if "train" not in words else LFGP if "lfgp" in words else SAC
        unique = ("--experiment", str(number)) if "train" in words else ()
        # who tests beside us may take longer than a robot waits
        unique += ("--sample.max-misses", "10000") if "--sample.real-time" in words else ()
        done = run_there(tmp_path, *words, *small, *sizes, *unique)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def test_the_network_of_the_page_trains_inside_sac_and_inside_the_algorithm_of_the_page(tmp_path):
    algorithm, actor = file_of("Your own algorithm"), "self.actor = mlp([self.obs_dim, *hidden, self.action_dim])"
    assert actor in algorithm
    own = "from my_nets import residual\n" + algorithm.replace(
        actor, "self.actor = residual(self.obs_dim, self.action_dim, self.cfg)"
    )
    (tmp_path / "my_ddpg.py").write_text(own)
    (tmp_path / "my_nets.py").write_text(file_of("Your own network"))
    words = ("train", "--env", "gym/Pendulum-v1", *SMALL, "--algo.hidden", "8", "8")
    for algo in (("--algo", "my_ddpg:SPEC"), ("--algo.net", "my_nets:residual", *SAC[2:])):
        done = run_there(tmp_path, *words, *algo, "--experiment", algo[1].replace(":", "-"))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("title", "example"), [("Several cameras", "cameras"), (VECTOR, "vec")])
def test_the_files_of_the_page_are_those_of_the_package(title, example):
    assert file_of(title) == (ROOT / "examples" / "outside" / "outside" / f"{example}.py").read_text()


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_the_cameras_of_the_page_train_without_any_flag_about_them(tmp_path, algo):
    (tmp_path / "my_cameras.py").write_text(file_of("Several cameras"))
    few = ("--steps", "64", "--warmup-steps", "32", "--algo.batch-size", "8") if algo == "sac" else (
        "--steps", "32", "--algo.rollout-steps", "32"
    )  # fmt: skip
    quick = (*few, "--eval.episodes", "1", "--trackers")
    done = run_there(tmp_path, "train", "--algo", algo, "--env", "gym/my_cameras:Cameras-v0", *quick)
    assert done.returncode == 0, done.stderr
    assert "done at step" in done.stdout


def test_the_simulator_of_the_page_trains_and_resumes_to_the_same_bytes(tmp_path):
    (tmp_path / "my_points.py").write_text(file_of(VECTOR))
    words = (
        "train", "--algo", "ppo", "--env", "gymvec/my_points:Points-v0", "--env.num-envs", "200", "--trackers",
        "--algo.rollout-steps", "16", "--eval.episodes", "1", "--checkpoint.every-steps", "3200",
    )  # fmt: skip
    whole = run_there(tmp_path, *words, "--steps", "9600")
    assert whole.returncode == 0, whole.stderr
    assert "cannot save its state" not in whole.stdout
    assert run_there(tmp_path, *words, "--steps", "3200", "--runs-dir", "b").returncode == 0
    run, part = (tmp_path / root / "default" / "my_points-Points-v0" / "0" for root in ("runs", "b"))
    assert run_there(tmp_path, "train", "--resume", part, "--steps", "9600", "--trust").returncode == 0
    last = Path("checkpoints") / "step-000000009600" / "state.safetensors"
    assert (part / last).read_bytes() == (run / last).read_bytes()
