"""Learning from a dataset with the runner that trains in environments: exact, resumable, and honest about its input."""

import json

import numpy as np
import pytest

from roboloop.algos.learner.data_scale import scale_of
from roboloop.core.config import override
from roboloop.core.errors import ConfigError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.run.build import build
from roboloop.run.offline import best_rows, env_of_dataset
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same
from tests.run.test_samplers import CARTPOLE, DOOM

DT = {"name": "dt", "context": 4, "width": 16, "layers": 1, "batch_size": 8, "warmup_updates": 1, "processes": 1}
BC = {"name": "bc", "hidden": [16], "batch_size": 8, "processes": 1}
SHORT = {
    "steps": 40,
    "log_every_steps": 10,
    "eval": {"every_steps": 20, "episodes": 2},
    "checkpoint": {"every_steps": 10},
}


def recorded(tiny, changes, **more):
    return train(tiny(experiment="source", record={"keep": "all", "min_free_mb": 0}, **changes, **more))


def offline(tiny, source, algo, experiment="offline", **more):
    config = tiny(experiment=experiment, algo=algo, dataset=str(source), env=env_of_dataset(str(source)))
    return override(config, {**SHORT, **more})


@pytest.mark.parametrize("algo", [DT, BC], ids=["dt", "bc"])
def test_a_run_on_a_dataset_that_crashed_ends_with_the_bits_of_one_that_did_not(tiny, algo):
    source = recorded(tiny, CARTPOLE)
    whole = train(offline(tiny, source, algo, "whole"))
    broken = train(offline(tiny, source, algo, "broken"), crash_after=17)
    resume(broken, crash_after=9)
    resume(broken)
    assert_same(whole, broken)


def test_pictures_are_learned_from_as_they_were_recorded(tiny):
    source = recorded(tiny, DOOM)
    small = {**DT, "conv_channels": [4, 4, 4], "conv_features": 8}
    path = train(offline(tiny, source, small, steps=4))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if "updates" in row][-1]
    assert logged["updates"] == 4
    assert logged["frames"] == 0  # nothing was simulated for learning


def test_a_dataset_that_grew_meanwhile_changes_nothing_of_a_run_that_goes_on(tiny):
    source = recorded(tiny, CARTPOLE)
    whole = train(offline(tiny, source, DT, "whole"))
    broken = train(offline(tiny, source, DT, "broken"), crash_after=17)
    dataset = Dataset.open(source / "dataset")
    with StoreWriter(source / "dataset", dataset.schema) as writer:
        writer.append(dataset.episode(0), dataset.entry(0).facts)
    resume(broken)
    assert_same(whole, broken)


def test_a_run_whose_episodes_were_evicted_says_so_instead_of_learning_something_else(tiny):
    source = recorded(tiny, CARTPOLE)
    broken = train(offline(tiny, source, DT), crash_after=17)
    dataset = Dataset.open(source / "dataset")
    with StoreWriter(source / "dataset", dataset.schema) as writer:
        writer.evict([int(dataset.table["id"][0])])
    with pytest.raises(ConfigError, match="episodes when this run began"):
        resume(broken)


def test_the_environment_is_that_of_the_data(tiny):
    source = recorded(tiny, DOOM)
    env = env_of_dataset(str(source))
    assert env["id"] == "doom/basic"
    assert env["action_repeat"] == 4
    assert env_of_dataset(str(source / "dataset")) == env


def test_another_environment_than_the_data_s_is_refused(tiny):
    source = recorded(tiny, CARTPOLE)
    config = override(offline(tiny, source, DT), {"env": {"id": "gym/InvertedPendulum-v5"}})
    with pytest.raises(ConfigError, match=r"obs_dtype|action"):
        build(config)


def test_the_target_is_the_best_return_unless_another_is_given(tiny):
    source = recorded(tiny, CARTPOLE)
    best = Dataset.open(source / "dataset").table["episode_return"].max()
    for given, wanted in ((None, best), (7.0, 7.0)):
        parts = build(offline(tiny, source, DT, target=given))
        assert parts.algo.policy.target == wanted
        parts.algo.close()


def test_the_best_episodes_hold_the_share_of_steps_that_was_asked_for(tiny):
    dataset = Dataset.open(recorded(tiny, CARTPOLE) / "dataset")
    every = np.arange(len(dataset))
    rows = best_rows(dataset, every, 30.0)
    length, returns = dataset.table["length"], dataset.table["episode_return"]
    assert length[rows].sum() >= 0.3 * length.sum()
    assert returns[rows].min() >= np.delete(returns, rows).max()
    assert length[rows].sum() - length[rows].min() <= 0.3 * length.sum() + length.max()
    assert best_rows(dataset, every, 100.0).tolist() == every.tolist()


def test_observations_are_measured_by_the_mean_and_deviation_of_the_data(tiny):
    dataset = Dataset.open(recorded(tiny, CARTPOLE) / "dataset")
    rows = np.arange(len(dataset))
    obs = np.concatenate([dataset.episode(row).obs[:-1] for row in rows])
    scale = scale_of(dataset, rows)
    np.testing.assert_allclose(scale.obs_mean, obs.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scale.obs_std, obs.std(0), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algo": DT}, "give --dataset"),
        ({"dataset": "somewhere"}, "--dataset is for dt and bc"),
        ({"algo": DT, "dataset": "d", "record": {"keep": "all"}}, "record.keep"),
        ({"algo": DT, "dataset": "d", "env": {"frame_stack": 2}}, "frame_stack"),
        ({"algo": DT, "dataset": "d", "top_percent": 0}, "top_percent"),
        ({"algo": DT, "dataset": "d", "window_every": 0}, "window_every"),
    ],
)
def test_a_contradiction_is_named_before_anything_is_created(tiny, changes, said):
    with pytest.raises(ConfigError, match=said):
        tiny(**changes).check()
