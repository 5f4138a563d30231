"""Refinement as a run: from a run or a file, with and without a guard, resumed == never stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from roboloop import cli
from roboloop.core.config import override
from roboloop.core.errors import ConfigError, DataError
from roboloop.run.build import build
from roboloop.run.config import Experiment
from roboloop.run.record import record
from roboloop.run.rundir import RunDir
from tests.conftest import TINY
from tests.run.helpers import resume, train
from tests.run.test_dynamics import changes as dynamics
from tests.run.test_resume import assert_same

CART = {"id": "tiny/cart", "num_envs": 2, "max_episode_steps": 20, "eval_max_episode_steps": 20}
PPO = {"hidden": [16], "rollout_steps": 16, "minibatches": 2, "epochs": 2, "processes": 1, "normalize_obs": True}


@pytest.fixture(scope="module")
def stages(tmp_path_factory) -> dict[str, Path]:
    """Return a start, as a run and as a file, and a guard."""
    root = tmp_path_factory.mktemp("stages")

    def small(**options):
        return override(override(Experiment(), {**TINY, "runs_dir": str(root)}), options)

    start = train(small(experiment="start", steps=64, env=CART, algo={"name": "ppo", **PPO}))
    file = root / "start.safetensors"
    assert cli.main(["export", str(start), "--frozen", str(file)]) == 0
    assert record(["tiny/weak-cart", "--random", "--episodes", "8", "--out", str(root / "target")]) == 0
    lags = {"state_lags": [4, 0], "action_lags": [4, 0], "padding": "mask"}
    guard = train(small(experiment="guard", **{**dynamics(root / "target", **lags), "steps": 96}))
    return {"run": start, "file": file, "guard": guard}


def changes(stages, begin="run", **options) -> dict:
    algo = {"name": "refine", "ppo": PPO, "start": str(stages[begin]), "start_std": 0.4, **options}
    return {"steps": 640, "env": CART, "algo": algo}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("start", ["run", "file"])
def test_a_crash_leaves_no_trace(tiny, stages, start):
    options = {"guard": str(stages["guard"]), "kl_coef": 0.1, "floor": 0.5, "kl_limit": 0.05}
    whole = train(tiny(experiment="whole", **changes(stages, start, **options)))
    path = train(tiny(experiment="broken", **changes(stages, start, **options)), crash_after=8)
    resume(path, crash_after=7)
    resume(path)
    assert_same(whole, path)
    assert {"kl_start", "d_score", "guard_fraction", "skipped"} <= set(rows(whole)[0])


def test_a_run_and_the_file_of_it_are_the_same_start(tiny, stages):
    a, b = (train(tiny(experiment=start, **{**changes(stages, start), "steps": 96})) for start in ("run", "file"))
    assert rows(a) == rows(b)
    assert "d_score" not in rows(a)[0]


def test_a_start_that_goes_on_training_changes_nothing_for_a_run_that_began_with_it(tiny, stages, tmp_path):
    """What was taken from other runs is part of the checkpoint."""
    copy = tmp_path / "start"
    shutil.copytree(stages["run"], copy)
    options = {"start_checkpoint": "last", "kl_coef": 0.1}
    whole = train(tiny(experiment="whole", **changes(stages, **options)))
    moved = {**changes(stages, **options)}
    moved["algo"] = {**moved["algo"], "start": str(copy)}
    path = train(tiny(experiment="broken", **moved), crash_after=8)
    run = RunDir.open(copy)
    run.save_config(override(run.config, {"steps": 96}))
    resume(copy)
    resume(path)
    assert rows(path) == rows(whole)


def test_a_start_or_a_guard_of_another_kind_is_refused(tiny, stages, tmp_path):
    sac = train(tiny(experiment="sac", steps=80))
    for options, error, said in (
        ({"start": str(sac)}, DataError, "trained sac: only an actor of PPO can be refined"),
        ({"guard": str(stages["run"])}, DataError, "trained ppo: only a run of dynamics can guard"),
        ({"start": str(tmp_path / "no.safetensors")}, DataError, "is no file"),
        ({"start": str(tmp_path / "no")}, DataError, "is not a run directory"),
        ({"ppo": {**PPO, "hidden": [8]}}, ConfigError, "must be .16., as the start's"),
    ):
        with pytest.raises(error, match=said):
            build(tiny(**changes(stages, **options)))
    free = {"groups": 2, "workers": 2, "free_running": True}
    with pytest.raises(ConfigError, match="the guard's windows look back"):
        build(tiny(**changes(stages, guard=str(stages["guard"])), sample=free))
    with pytest.raises(ConfigError, match="refine takes single observations"):
        tiny(**{**changes(stages), "env": {**CART, "frame_stack": 2}}).check()


def test_its_policy_is_evaluated_recorded_and_frozen_like_any_other(tiny, stages, tmp_path, capsys):
    run = train(tiny(**{**changes(stages), "steps": 96}))
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 0
    assert cli.main(["record", str(run), "--episodes", "1", "--out", str(tmp_path / "recorded")]) == 0
    assert cli.main(["export", str(run), "--frozen", str(tmp_path / "p.safetensors")]) == 0
    assert "refine policy of step 96" in capsys.readouterr().out
