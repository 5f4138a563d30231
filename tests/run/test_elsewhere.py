"""A run's policy in other environments: recorded and evaluated there, and refused where it cannot act."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roboloop import cli
from roboloop.core.config import override
from roboloop.data.dataset import Dataset
from roboloop.run.config import Experiment
from tests.conftest import TINY
from tests.run.helpers import train

CART = {"id": "tiny/cart", "num_envs": 2, "max_episode_steps": 20, "eval_max_episode_steps": 20}
PPO = {"name": "ppo", "hidden": [8], "rollout_steps": 16, "minibatches": 1, "processes": 1}


@pytest.fixture(scope="module", params=[False, True], ids=["one std", "std of the state"])
def run(request, tmp_path_factory) -> Path:
    runs = str(tmp_path_factory.mktemp("runs"))
    changes = {"steps": 64, "env": CART, "algo": {**PPO, "state_dependent_std": request.param}}
    return train(override(override(Experiment(), {**TINY, "runs_dir": runs}), changes))


def said(capsys, *args) -> str:
    """Return the one line in which a command is refused."""
    assert cli.main([*map(str, args)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def speeds(data: Dataset) -> list[float]:
    """Return by how much the speed changes in the first step of each episode, for each unit of the action."""
    episodes = [data.episode(row) for row in range(len(data))]
    steps = [(e.obs[0, 1], e.obs[1, 1], e.action[0, 0].clip(-1, 1)) for e in episodes]
    return [float((after - 0.9 * before) / action) for before, after, action in steps if abs(action) > 0.05]


def test_a_policy_is_recorded_in_another_environment(run, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    common = ["--explore", "--episodes", "4"]
    assert cli.main(["record", str(run), *common, "--out", str(here)]) == 0
    assert cli.main(["record", str(run), *common, "--out", str(there), "--env", "tiny/weak-cart",
                     "--env.max-episode-steps", "7"]) == 0  # fmt: skip
    a, b = Dataset.open(here), Dataset.open(there)
    assert speeds(a) == pytest.approx([0.5] * len(speeds(a)), rel=1e-3)
    assert speeds(b) == pytest.approx([0.25] * len(speeds(b)), rel=1e-3)
    assert b.schema.env_id == b.schema.source["env"]["id"] == "tiny/weak-cart"
    assert b.table["length"].max() == 7
    assert cli.main(["record", str(run), "--episodes", "1", "--env", "tiny/weak-cart"]) == 0
    assert Dataset.open(run / "recorded-weak-cart").schema.env_id == "tiny/weak-cart"


def test_a_deviation_is_given_for_recording(run, tmp_path):
    wide, narrow = tmp_path / "wide", tmp_path / "narrow"
    for std, out in ((2.0, wide), (1e-3, narrow)):
        assert cli.main(["record", str(run), "--explore", "--std", str(std), "--episodes", "4", "--out", str(out)]) == 0
    spread = [np.concatenate([d.episode(r).action for r in range(4)]).std() for d in map(Dataset.open, (wide, narrow))]
    assert spread[0] > 1.5
    assert spread[1] < 0.3
    assert Dataset.open(wide).schema.source["recording"]["std"] == 2.0


def test_a_policy_is_evaluated_in_another_environment(run, capsys):
    common = ["eval", str(run), "--episodes", "3"]
    assert cli.main(common) == 0
    assert cli.main([*common, "--env", "tiny/weak-cart"]) == 0
    assert cli.main([*common, "--env.eval-max-episode-steps", "5"]) == 0
    names = {path.name.split("-3x0")[1]: path for path in (run / "eval").glob("test-*.jsonl")}
    assert set(names) == {".jsonl", "-weak-cart.jsonl", "-eval-max-episode-steps-5.jsonl"}
    header, *rows = map(json.loads, names["-weak-cart.jsonl"].read_text().splitlines())
    assert header["env"]["id"] == "tiny/weak-cart"
    assert header["protocol"]["task"] == "weak-cart"
    assert len(rows) == 3
    assert "env" not in json.loads(names[".jsonl"].read_text().splitlines()[0])
    short = names["-eval-max-episode-steps-5.jsonl"].read_text().splitlines()
    assert [json.loads(line)["length"] for line in short[1:]] == [5, 5, 5]
    capsys.readouterr()
    assert cli.main([*common, "--env", "tiny/weak-cart", "--checkpoint", "all"]) == 0
    assert (run / "eval-weak-cart.jsonl").is_file()


def test_what_does_not_fit_is_refused_in_one_line(run, capsys):
    eval_, record = ["eval", run, "--episodes", 2], ["record", run, "--episodes", 2]
    for verb in (eval_, record):
        assert "tiny/hybrid-cart has obs_shape (3,), tiny/cart (2,)" in said(capsys, *verb, "--env", "tiny/hybrid-cart")
        assert "did you mean 'weak-cart'" in said(capsys, *verb, "--env", "tiny/weak-kart")
        assert "leave env.frame_stack" in said(capsys, *verb, "--env.frame-stack", 2)
        assert "unknown option --steps" in said(capsys, *verb, "--env.max-episode-steps", 5, "--steps", 3)
        assert "unknown option --env.horizon" in said(capsys, *verb, "--env.horizon", 3)
        assert "unknown option --sed" in said(capsys, *verb, "--sed", 3)
    assert "--std is a deviation above 0" in said(capsys, *record, "--std", 0.1)
    assert "--std is a deviation above 0" in said(capsys, *record, "--explore", "--std", 0)
    assert "--env is for the policy of a run" in said(capsys, "eval", "--expert", "play/reach", "--env", "play/grasp")
    assert "--video is for the policy of a run" in said(capsys, "eval", "--expert", "play/reach", "--video")
    assert "--env is for the policy of a run" in said(
        capsys, "record", "play/reach", "--expert", "--episodes", 1, "--env", "play/grasp"
    )
