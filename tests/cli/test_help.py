"""Help shows what a recipe has, and a shell completes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roboloop.cli import main
from tests.cli.test_cli import roboloop


def test_help_of_a_recipe_names_its_own_keys_and_all_options_on_two_screens():
    shown = roboloop("train", "cartpole", "--help").stdout
    for word in (
        "--resume",
        "--fork",
        "--at",
        "--algo NAME",
        "--overwrite",
        "--algo.gae-lambda",
        "--env.id gym/CartPole-v1",
    ):
        assert word in shown
    assert "--algo.tau" not in shown  # of sac
    assert len(shown.splitlines()) <= 120
    assert len(roboloop("train", "cartpole", "--help-all").stdout.splitlines()) > len(shown.splitlines())


def test_help_follows_the_algorithm_that_is_asked_for(capsys):
    assert main(["train", "--algo", "bc", "--help"]) == 0
    assert "--algo.context 1" in capsys.readouterr().out


def test_a_line_of_help_is_a_whole_sentence_where_it_fits(capsys):
    assert main(["train", "reach", "--help"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--algo.alpha " in line]
    assert line.endswith("Fixed temperature; None learns it.")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("roboloop tra", "train"),
        ("roboloop train cartp", "cartpole"),
        ("roboloop train --algo mts", "mtsac"),
        ("roboloop train cartpole --algo.gae", "--algo.gae-lambda"),
        ("roboloop train --algo dt --algo.cont", "--algo.context"),
        ("roboloop train --algo outside.td3 : SPEC --algo.pol", "--algo.policy-delay"),
        ("roboloop train --algo = ppo --algo.gae", "--algo.gae-lambda"),
        ("roboloop train --env gym/Pendulum-v1 --env.kw", "--env.kwargs"),
        ("roboloop train --env gym/Pend", "gym/Pendulum-v1"),
        ("roboloop train --env = tiny/poi", "tiny/point"),
        ("roboloop train --trackers tens", "tensorboard"),
        ("roboloop train --over", "--overwrite"),
        ("roboloop sweep cartpole --ax", "--axis"),
        ("roboloop eval RUN --epi", "--episodes"),
        ("roboloop runs --wa", "--watch"),
    ],
)
def test_bash_completes_verbs_recipes_algorithms_and_keys(tmp_path, typed, found):
    (tmp_path / "roboloop").write_text(f'#!/bin/sh\nexec {sys.executable} -m roboloop.cli "$@"\n')
    (tmp_path / "roboloop").chmod(0o755)
    words = typed.split()
    script = (
        f'eval "$(roboloop completion bash)"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        '_roboloop; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2], check=True
    )
    assert found in done.stdout.split()


def test_overwrite_moves_the_old_run_aside_and_starts_over(tmp_path):
    words = ("train", "--env", "tiny/point", "--steps", "40", "--warmup-steps", "10", "--algo.hidden", "8",
             "--algo.batch-size", "8", "--trackers", "--eval.episodes", "0", "--runs-dir", tmp_path)  # fmt: skip
    assert roboloop(*words).returncode == 0
    assert roboloop(*words).returncode == 3
    done = roboloop(*words, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "is now" in done.stdout
    kept = sorted(path.name for path in (tmp_path / "default" / "point").iterdir())
    assert kept == ["0", "0.old-1"]
    assert "old-1" not in roboloop("runs", tmp_path).stdout
