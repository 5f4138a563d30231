"""Adversarial dynamics as a run: the same seed is the same run, resumed == never stopped, and as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.run.build import build
from roboloop.run.record import record
from tests.cli.test_cli import roboloop
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same

HYBRID = {"id": "tiny/hybrid-cart", "num_envs": 2, "max_episode_steps": 20, "eval_max_episode_steps": 20}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("target") / "weak"
    assert record(["tiny/weak-cart", "--random", "--episodes", "8", "--out", str(out)]) == 0
    return out


def changes(target: Path, **options) -> dict:
    ppo = {"hidden": [16], "rollout_steps": 16, "minibatches": 4, "epochs": 2, "processes": 1}
    turns = {"discriminator_updates": 3, "discriminator_batch": 16, **options}
    algo = {"name": "dynamics", "ppo": ppo, "discriminator": {"hidden": [16]}, "target": {"directory": str(target)}}
    return {"steps": 640, "env": HYBRID, "algo": {**algo, **turns}}


OPTIONS = {
    "one step": {},
    "lags and replay": {"state_lags": [8, 0], "action_lags": [8, 4, 0], "padding": "mask", "replay_rollouts": 3},
    "ahead": {"ahead": 3, "state_lags": [5]},
    "absorbing": {"discriminator": {"hidden": [16], "ends": "absorbing", "spectral_norm": True}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_crash_leaves_no_trace(tiny, target, options):
    whole = train(tiny(experiment="whole", **changes(target, **options)))
    path = train(tiny(experiment="broken", **changes(target, **options)), crash_after=8)
    resume(path, crash_after=7)
    resume(path)
    assert_same(whole, path)


def test_the_same_seed_is_the_same_run_whoever_steps_the_environments(tiny, target):
    lags = changes(target, **OPTIONS["lags and replay"])
    serial = train(tiny(experiment="serial", **lags, sample={"groups": 2}))
    workers = train(tiny(experiment="workers", **lags, sample={"groups": 2, "workers": 2}))
    assert_same(serial, workers)


def test_what_cannot_be_looked_back_on_is_refused(tiny, target):
    with pytest.raises(ConfigError, match="they need all envs in each, in order"):
        tiny(**changes(target, state_lags=[1]), sample={"groups": 2, "workers": 2, "free_running": True}).check()
    tiny(**changes(target), sample={"groups": 2, "workers": 2, "free_running": True}).check()
    with pytest.raises(ConfigError, match=r"leave env.frame_stack at 1"):
        tiny(**{**changes(target), "env": {**HYBRID, "frame_stack": 2}}).check()
    with pytest.raises(ConfigError, match="dynamics needs an environment whose action is a simulator's parameters"):
        build(tiny(**{**changes(target), "env": {**HYBRID, "id": "tiny/cart"}}))


def test_it_is_trained_as_a_user_types_it(target, tmp_path):
    file = tmp_path / "dynamics.yaml"
    file.write_text(json.dumps(changes(target)))
    flags = "--trackers --log-every-steps 64 --eval.every-steps 0 --eval.episodes 2".split()
    done = roboloop("train", "--config", file, "--runs-dir", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / "hybrid-cart" / "0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"d_score", "d_score_held_out", "disc_accuracy", "disc_calibration_error"} <= set(rows[0])
    done = roboloop("train", "--algo", "dynamics", "--env", "tiny/hybrid-cart", "--runs-dir", tmp_path / "b")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "algo.target.directory" in done.stderr
