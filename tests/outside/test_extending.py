"""The files of ``docs/extending.md`` work as they stand there."""

import csv
import os
import re
from pathlib import Path

from roboloop.track.read import read_jsonl
from tests.cli.test_cli import roboloop

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
SMALL = (
    "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40", "--steps", "300", "--warmup-steps", "60",
    "--eval.episodes", "2", "--eval.every-steps", "150", "--checkpoint.every-steps", "50", "--trackers",
)  # fmt: skip


def file_of(title: str) -> str:
    """Return the first whole Python file below a title."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


def with_path(folder: Path, *words: object):
    return roboloop(*words, cwd=folder, PYTHONPATH=os.pathsep.join((str(folder), str(Path(__file__).parents[2]))))


def test_the_algorithm_of_the_page_trains_shows_its_keys_and_resumes(tmp_path):
    (tmp_path / "my_ddpg.py").write_text(file_of("Your own algorithm"))
    words = ("train", "--algo", "my_ddpg:SPEC", "--env", "gym/Pendulum-v1", *SMALL)
    done = with_path(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "Pendulum-v1" / "0"
    shown = with_path(tmp_path, *words, "--help").stdout
    assert "--algo.hidden 64" in shown
    assert "Width of both hidden layers." in shown
    assert with_path(tmp_path, "eval", run, "--episodes", "1").returncode == 2  # nobody vouches for a saved name
    assert with_path(tmp_path, "eval", run, "--episodes", "1", "--trust").returncode == 0
    assert with_path(tmp_path, *words, "--runs-dir", "b", "--steps", "150").returncode == 0
    part = tmp_path / "b" / "default" / "Pendulum-v1" / "0"
    assert with_path(tmp_path, "train", "--resume", part, "--steps", "300", "--trust").returncode == 0
    last = Path("checkpoints") / "step-000000000300" / "state.safetensors"
    assert (part / last).read_bytes() == (run / last).read_bytes()


def test_the_tracker_of_the_page_mirrors_a_run_and_its_resume(tmp_path):
    (tmp_path / "my_csv.py").write_text(file_of("Your own tracker"))
    words = (
        "--env",
        "gym/Pendulum-v1",
        *SMALL,
        "--trackers",
        "my_csv:CSV",
        "--algo.hidden",
        "16",
        "16",
        "--algo.processes",
        "1",
    )
    done = with_path(tmp_path, "train", *words, "--log-every-steps", "50", "--steps", "150")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "Pendulum-v1" / "0"
    assert with_path(tmp_path, "train", "--resume", run, "--steps", "300").returncode == 2  # nobody vouches for it
    assert with_path(tmp_path, "train", "--resume", run, "--steps", "300", "--trust").returncode == 0
    with open(run / "metrics.csv", newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["step", "name", "value"]
    rows = read_jsonl(run / "metrics.jsonl")
    numbers = [(row["step"], key, value) for row in rows for key, value in row.items() if isinstance(value, float)]
    mirrored = [(int(step), name, float(value)) for step, name, value in lines]
    assert [each for each in mirrored if each in numbers] == numbers
    assert max(step for step, _, _ in mirrored) == 300
