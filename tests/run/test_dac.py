"""Discriminator-actor-critic as a run: resumed == never stopped, and what does not fit is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.run.build import build
from roboloop.run.record import record
from tests.cli.test_cli import roboloop
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same

SMALL = {"hidden": [16], "lr": 1e-3}
PLAY = {"id": "play/place", "max_episode_steps": 30, "eval_max_episode_steps": 30}


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "place"
    assert record(["play/place", "--expert", "--episodes", "6", "--noise", "0.1", "--out", str(out)]) == 0
    return out


def changes(demos: Path, **discriminator) -> dict:
    sac = {"hidden": [16, 16], "batch_size": 16, "processes": 1}
    expert = {"directory": str(demos)}
    algo = {"name": "dac", "sac": sac, "discriminator": {**SMALL, **discriminator}, "expert": expert}
    return {"steps": 200, "env": PLAY, "algo": {**algo, "expert_fraction": 0.5, "expert_decay": 0.99}}


@pytest.mark.parametrize("options", [{}, {"ends": "alive", "spectral_norm": True}], ids=["absorbing", "alive"])
def test_a_crash_leaves_no_trace(tiny, demos, options):
    whole = train(tiny(experiment="whole", **changes(demos, **options)))
    path = train(tiny(experiment="broken", **changes(demos, **options)), crash_after=127)
    resume(path, crash_after=40)
    resume(path)
    assert_same(whole, path)


def test_data_of_another_environment_or_none_at_all_is_refused(tiny, demos, tmp_path):
    other = tiny(**{**changes(demos), "env": {"id": "gym/Pendulum-v1"}})
    with pytest.raises(ConfigError, match="gym/Pendulum-v1 has obs_shape"):
        build(other)
    with pytest.raises(DataError, match="has no dataset of place: roboloop record ENV --expert --task place"):
        build(tiny(**changes(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match=r"leave env.frame_stack at 1"):
        tiny(**{**changes(demos), "env": {**PLAY, "frame_stack": 2}}).check()


def test_it_is_trained_and_evaluated_as_a_user_types_it(demos, tmp_path):
    flags = (
        "--env play/place --steps 150 --warmup-steps 50 --eval.every-steps 0 --eval.episodes 2 --no-tensorboard"
        " --algo.sac.processes 1 --algo.sac.batch-size 16 --algo.sac.hidden 16 --algo.discriminator.hidden 16"
        " --env.eval-max-episode-steps 20"
    )
    done = roboloop("train", "--algo", "dac", "--algo.expert.directory", demos, "--runs-dir", tmp_path, *flags.split())
    assert done.returncode == 0, done.stderr
    assert "done at step 150" in done.stdout
    done = roboloop("eval", tmp_path / "default" / "place" / "0", "--episodes", 2)
    assert done.returncode == 0, done.stderr
    assert "held-out evaluation: success 0%" in done.stdout
    done = roboloop("train", "--algo", "dac", "--env", "play/place", "--runs-dir", tmp_path / "b")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "algo.expert.directory" in done.stderr
