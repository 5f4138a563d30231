"""Behaviour cloning of several tasks as a run: a set's or auxiliary ones, exact resume, a table of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roboloop.algos.learner.data_scale import common_scale, scale_of
from roboloop.core.config import override
from roboloop.core.errors import ConfigError, DataError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.run.build import build
from roboloop.run.offline import env_of_dataset
from roboloop.run.record import record
from tests.cli.test_cli import roboloop
from tests.run.helpers import resume, train
from tests.run.test_offline import SHORT
from tests.run.test_resume import assert_same

HEADS = {"name": "bc", "net": "heads", "hidden": [16], "head_hidden": [8], "batch_size": 20, "processes": 1}
FLAGS = ["--expert", "--noise", "0.1", "--env.max-episode-steps", "40"]


@pytest.fixture(scope="module")
def auxiliary(tmp_path_factory) -> Path:
    """Return a directory with a dataset for each task; that of release begins in the middle of a grasp."""
    root = tmp_path_factory.mktemp("auxiliary")
    for task in ("place", "reach", "grasp", "move"):
        assert record(["play/place", *FLAGS, "--episodes", "3", "--task", task, "--out", str(root / task)]) == 0
    led = ["--schedule", "grasp:15,release", "--out", str(root / "release")]
    assert record(["play/place", *FLAGS, "--episodes", "3", *led]) == 0
    return root


@pytest.fixture(scope="module")
def task_set(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("set") / "data"
    assert record(["play/reach+grasp", *FLAGS, "--episodes", "6", "--envs", "2", "--out", str(out)]) == 0
    return out


def learning(tiny, source: Path, experiment: str = "cloned", algo: dict | None = None, **more):
    env = {**env_of_dataset(str(source)), "eval_max_episode_steps": 40}
    config = tiny(experiment=experiment, algo=algo or HEADS, dataset=str(source), env=env)
    return override(config, {**SHORT, **more})


@pytest.mark.parametrize("source", ["auxiliary", "task_set"])
def test_a_crash_leaves_no_trace(tiny, source, request):
    data = request.getfixturevalue(source)
    whole = train(learning(tiny, data, "whole"))
    broken = train(learning(tiny, data, "broken"), crash_after=17)
    resume(broken, crash_after=9)
    resume(broken)
    assert_same(whole, broken)


def test_every_task_of_a_set_has_its_rows_its_head_and_its_line_of_the_evaluation(tiny, task_set):
    parts = build(learning(tiny, task_set))
    batch = parts.store.sample()
    assert batch.obs[:10, 0, 7:].tolist() == [[1, 0]] * 10
    assert batch.obs[10:, 0, 7:].tolist() == [[0, 1]] * 10
    parts.algo.close()
    path = train(learning(tiny, task_set))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    evaluation = [row for row in rows if "eval/success" in row][-1]
    assert {"eval/success/reach", "eval/success/grasp", "eval/return/reach", "eval/return/grasp"} <= set(evaluation)
    done = roboloop("eval", path, "--episodes", 2)
    assert done.returncode == 0, done.stderr
    assert "task   success" in done.stdout
    assert "grasp" in done.stdout


def test_what_only_leads_up_to_a_task_is_not_imitated(tiny, auxiliary):
    parts = build(learning(tiny, auxiliary))
    seen = [parts.store.sample().t.reshape(5, -1).copy() for _ in range(50)]
    first = np.min(seen, axis=(0, 2))
    # the others' first steps: of 40, drawn 200 times
    assert first.tolist() == [0, 0, 0, 0, 15]
    parts.algo.close()


def test_a_dataset_of_a_task_that_grew_changes_nothing_of_a_run_that_goes_on(tiny, auxiliary):
    whole = train(learning(tiny, auxiliary, "whole"))
    broken = train(learning(tiny, auxiliary, "broken"), crash_after=17)
    dataset = Dataset.open(auxiliary / "grasp")
    with StoreWriter(dataset.directory, dataset.schema) as writer:
        writer.append(dataset.episode(0), dataset.entry(0).facts)
    resume(broken)
    assert_same(whole, broken)


def test_scales_count_every_task_alike(auxiliary):
    data = [Dataset.open(auxiliary / task) for task in ("place", "reach")]
    found = common_scale([scale_of(each, np.arange(3)) for each in data])
    obs = np.concatenate([each.episode(row).obs[:-1] for each in data for row in range(3)])  # equally many of both
    np.testing.assert_allclose(found.obs_mean, obs.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.obs_std, obs.std(0), atol=1e-5)


def test_what_does_not_fit_is_one_line(tiny, auxiliary):
    plain = {**HEADS, "net": "plain"}
    with pytest.raises(ConfigError, match=r"holds a dataset for each task: .*'heads'"):
        build(learning(tiny, auxiliary, algo=plain))
    with pytest.raises(ConfigError, match="batch_size 18 does not split into 5 tasks x 2 shards"):
        build(learning(tiny, auxiliary, algo={**HEADS, "batch_size": 18}))


def test_data_without_some_of_the_tasks_is_refused(tiny, auxiliary, task_set, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "move").symlink_to(auxiliary / "move")
    with pytest.raises(DataError, match="has no dataset of place, reach, grasp, release"):
        build(learning(tiny, tmp_path / "some"))
    (tmp_path / "some" / "both").symlink_to(task_set)
    with pytest.raises(DataError, match=r"several environments \(play/place, play/reach\+grasp\)"):
        env_of_dataset(str(tmp_path / "some"))
    assert record(["play/reach+grasp", *FLAGS, "--episodes", "2", "--envs", "2", "--out", str(tmp_path / "two")]) == 0
    dataset = Dataset.open(tmp_path / "two")
    with StoreWriter(dataset.directory, dataset.schema) as writer:
        writer.evict([int(i) for i in dataset.table["id"][dataset.table["task"] == "grasp"]])
    with pytest.raises(DataError, match="has no episodes of grasp"):
        build(learning(tiny, tmp_path / "two"))
