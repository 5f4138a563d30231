"""Generative adversarial imitation as a run: resumed == never stopped, and what does not fit is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.run.build import build
from roboloop.run.record import record
from tests.cli.test_cli import roboloop
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same

PLAY = {"id": "play/reach", "num_envs": 2, "max_episode_steps": 20, "eval_max_episode_steps": 20}


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "reach"
    assert record(["play/reach", "--expert", "--episodes", "6", "--noise", "0.1", "--out", str(out)]) == 0
    return out


def changes(demos: Path, **options) -> dict:
    ppo = {"hidden": [16], "rollout_steps": 16, "processes": 1, "normalize_obs": True, "normalize_returns": True}
    small = {"hidden": [16], "lr": 1e-3, "ends": options.pop("ends", "absorbing")}
    turns = {"discriminator_updates": 3, "discriminator_batch": 16, **options}
    algo = {"name": "gail", "ppo": ppo, "discriminator": small, "expert": {"directory": str(demos)}, **turns}
    return {"steps": 640, "env": PLAY, "algo": algo}


@pytest.mark.parametrize("options", [{}, {"replay_rollouts": 3, "ends": "alive"}], ids=["newest", "replay"])
def test_a_crash_leaves_no_trace(tiny, demos, options):
    whole = train(tiny(experiment="whole", **changes(demos, **options)))
    path = train(tiny(experiment="broken", **changes(demos, **options)), crash_after=8)
    resume(path, crash_after=7)
    resume(path)
    assert_same(whole, path)


def test_what_cannot_be_compared_with_the_expert_is_refused(tiny, demos):
    with pytest.raises(ConfigError, match="gym/Pendulum-v1 has obs_shape"):
        build(tiny(**{**changes(demos), "env": {"id": "gym/Pendulum-v1", "num_envs": 2}}))
    with pytest.raises(ConfigError, match=r"gail takes single observations: leave env.frame_stack at 1"):
        tiny(**{**changes(demos), "env": {**PLAY, "frame_stack": 2}}).check()
    with pytest.raises(ConfigError, match=r"'sample.steps' is for off-policy algorithms"):
        tiny(**changes(demos), sample={"steps": 4}).check()
    uneven = changes(demos)
    uneven["algo"]["ppo"] = {"rollout_steps": 5, "minibatches": 4}
    with pytest.raises(ConfigError, match="10 steps do not fall into 4 minibatches"):
        tiny(**uneven).check()


def test_it_is_trained_evaluated_and_recorded_as_a_user_types_it(demos, tmp_path):
    flags = (
        "--env play/reach --steps 256 --eval.every-steps 0 --eval.episodes 2 --trackers --algo.ppo.processes 1"
        " --algo.ppo.hidden 16 --algo.discriminator.hidden 16 --env.eval-max-episode-steps 20"
    )
    done = roboloop("train", "--algo", "gail", "--algo.expert.directory", demos, "--runs-dir", tmp_path, *flags.split())
    assert done.returncode == 0, done.stderr
    assert "done at step 256" in done.stdout
    run = tmp_path / "default" / "reach" / "0"
    done = roboloop("eval", run, "--episodes", 2)
    assert done.returncode == 0, done.stderr
    assert "held-out evaluation: success" in done.stdout
    done = roboloop("record", run, "--episodes", 1, "--out", tmp_path / "recorded")
    assert done.returncode == 0, done.stderr
    done = roboloop("train", "--algo", "gail", "--env", "play/reach", "--runs-dir", tmp_path / "b")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "algo.expert.directory" in done.stderr
