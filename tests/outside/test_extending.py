"""The files of ``docs/extending.md`` work as they stand there."""

import os
import re
from pathlib import Path

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
