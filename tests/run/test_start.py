"""Weights of another run to begin with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roboloop import cli
from roboloop.core.config import override
from roboloop.run import checkpoint
from roboloop.run.build import build
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir
from roboloop.run.start import load_weights_from
from tests.conftest import TINY
from tests.run.helpers import train

CART = {"id": "tiny/cart", "num_envs": 2, "max_episode_steps": 20, "eval_max_episode_steps": 20}
ALGOS = {
    "ppo": {"name": "ppo", "hidden": [8], "rollout_steps": 16, "minibatches": 1, "processes": 1},
    "sac": {"name": "sac", "hidden": [8], "batch_size": 8, "processes": 1},
}


def config(runs: str, **changes) -> Experiment:
    return override(override(Experiment(), {**TINY, "runs_dir": runs}), {"steps": 64, "env": CART, **changes})


def net(state: dict) -> dict[str, np.ndarray]:
    policy = state["policy"]
    return {name: np.asarray(value) for name, value in (policy.get("weights") or policy["net"]).items()}


@pytest.fixture(scope="module", params=ALGOS, ids=list(ALGOS))
def old(request, tmp_path_factory) -> Path:
    return train(config(str(tmp_path_factory.mktemp("runs")), algo=ALGOS[request.param]))


def flags(old: Path, tmp_path: Path, name: str) -> list[str]:
    own = ["--experiment", name, "--runs-dir", str(tmp_path), "--env", "tiny/weak-cart", "--start", str(old)]
    return ["train", "--config", str(old / "config.yaml"), *own]


def test_a_run_begins_with_the_last_weights_of_another_and_counts_anew(old, tmp_path):
    saved = next(checkpoint.newest_first(old / "checkpoints", print)).state["algo"]
    begun = override(RunDir.open(old).config, {"start": str(old), "env": {"id": "tiny/weak-cart"}, "seed": 5})
    parts = build(begun)
    try:
        fresh = net(parts.algo.state())
        load_weights_from(parts.algo, begun)
        taken = net(parts.algo.state())
    finally:
        for part in (parts.sampler, parts.evaluator, parts.algo):
            part.close()
    assert parts.algo.num_updates == 0 < saved["num_updates"]
    assert all((taken[name] == value).all() for name, value in net(saved).items())
    assert any((taken[name] != value).any() for name, value in fresh.items())


def test_it_is_a_run_like_any_other_and_its_first_rows_know_no_earlier_steps(old, tmp_path):
    assert cli.main(flags(old, tmp_path, "next")) == 0
    rows = [json.loads(line) for line in (tmp_path / "next/weak-cart/0/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["step"] <= 64
    assert rows[-1]["step"] == 64


def test_one_that_died_before_its_first_checkpoint_begins_with_them_again(old, tmp_path):
    assert cli.main(flags(old, tmp_path, "whole")) == 0
    assert cli.main(flags(old, tmp_path, "died")) == 0
    whole, died = (tmp_path / name / "weak-cart/0" for name in ("whole", "died"))
    for path in (died / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)  # as if it had not come to one
    status = json.loads((died / "status.json").read_text()) | {"state": "failed", "step": 0}
    (died / "status.json").write_text(json.dumps(status))
    assert cli.main(["train", "--resume", str(died)]) == 0
    ends = [next(checkpoint.newest_first(path / "checkpoints", print)).state["algo"] for path in (whole, died)]
    assert all((net(ends[0])[name] == value).all() for name, value in net(ends[1]).items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--env", "tiny/point"], "do not fit: tiny/cart has action_low (-1.0,), tiny/point (-0.2,)"),
        (["--env.frame-stack", "2"], "do not fit: it saw 1 observations at once, this run 2"),
        (["--algo.hidden", "9"], "was the network or the environment changed?"),
        (["--start", "nowhere"], "nowhere is not a run directory"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line_and_leave_no_run(old, tmp_path, capsys, change, message):
    assert cli.main([*flags(old, tmp_path, "misfit"), *change]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "misfit").exists()


def test_a_fork_into_another_environment_is_told_what_to_use_instead(old, capsys):
    change = ["--at", "64", "--experiment", "f", "--env", "tiny/weak-cart"]
    assert cli.main(["train", "--fork", str(old), *change]) == 2
    said = capsys.readouterr().err
    assert f"a fork keeps env.id: its buffer and its running episodes depend on it (--start {old}" in said
