"""A dataset beside training: it changes no bit of it, holds every step once, and survives crashes."""

import json

import numpy as np
import pytest

from roboloop.core.config import override, to_dict
from roboloop.core.errors import ConfigError
from roboloop.core.state import equal
from roboloop.data.dataset import Dataset
from roboloop.run import plan
from roboloop.run.build import build
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir
from roboloop.track.read import read_jsonl
from tests.data.recording import names as names_of
from tests.run.helpers import remains, resume, train
from tests.run.test_resume import assert_same
from tests.run.test_samplers import DOOM, PPO, SAC, with_workers

ALL = {"keep": "all", "min_free_mb": 0}
STACKED = {**PPO, "env": {"num_envs": 4, "frame_stack": 3}}
KINDS = {
    "sac": SAC,
    "ppo": PPO,
    "stacked": STACKED,
    "doom": DOOM,
    "sac lock step": with_workers(SAC, workers=2),
    "ppo lock step": with_workers(PPO, workers=2),
    "sac free": with_workers(SAC, workers=2, free_running=True),
    "ppo free": with_workers(PPO, workers=2, free_running=True),
}


def dataset_of(path):
    return Dataset.open(path / "dataset")


def counts_of(path):
    return json.loads((path / "record.json").read_text())["counts"]


def assert_sound(dataset, horizon):
    """No step is there twice, episodes are whole, versions grow along every stream."""
    table = dataset.table
    names = names_of(dataset)
    assert len(names) == len(set(names))
    for env in np.unique(table["env"]):
        rows = np.flatnonzero(table["env"] == env)
        assert (np.diff(table["episode"][rows]) > 0).all()
        versions = np.concatenate([dataset.episode(row).version for row in rows])
        assert (np.diff(versions) >= 0).all()
    for row in range(len(dataset)):
        episode = dataset.episode(row)
        assert len(episode.reward) == table["length"][row] <= horizon
        assert episode.raw_reward.sum() == pytest.approx(table["episode_return"][row], rel=1e-4, abs=1e-3)
        assert (episode.terminated | episode.truncated).nonzero()[0].tolist() == [len(episode.reward) - 1]
    return set(names)


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_every_sampler_and_algorithm_leaves_every_finished_episode_in_the_dataset(tiny, changes):
    path = train(tiny(**changes, record=ALL))
    dataset = dataset_of(path)
    names = assert_sound(dataset, horizon=40)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "episodes" in row][-1]
    assert len(names) == last["episodes"] == last["record/chosen_episodes"] > 3
    assert dataset.num_steps == last["record/chosen_steps"]
    if not changes.get("sample", {}).get("free_running"):  # there, whoever starts first may take all the steps
        assert {env for env, _ in names} == set(range(4))
    assert counts_of(path)["recorded_steps"] == dataset.num_steps


@pytest.mark.parametrize("changes", [SAC, PPO, with_workers(PPO, workers=2)], ids=["sac", "ppo", "workers"])
def test_recording_changes_no_bit_of_training(tiny, changes):
    plain, recorded = train(tiny(experiment="a", **changes)), train(tiny(experiment="b", **changes, record=ALL))
    a, b = remains(plain), remains(recorded)
    del a["state"]["recorder"], b["state"]["recorder"]
    assert equal(a["state"], b["state"])
    assert equal(a["rows"], b["rows"])
    rows = [
        {k: v for k, v in row.items() if not k.startswith("record/")} for row in read_jsonl(recorded / "metrics.jsonl")
    ]
    assert list(map(json.dumps, rows)) == list(map(json.dumps, read_jsonl(plain / "metrics.jsonl")))


def test_without_a_recorder_there_is_no_process_and_no_dataset(tiny):
    path = train(tiny())
    assert not (path / "dataset").exists()
    assert not (path / "record.json").exists()
    assert "record/" not in (path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "crash_after"), [(SAC, 27), (PPO, 7), (with_workers(PPO, workers=2), 7)], ids=["sac", "ppo", "workers"]
)
def test_a_crash_leaves_no_trace_in_training_and_no_step_twice_in_the_dataset(tiny, changes, crash_after):
    changes = {**changes, "checkpoint": {"every_steps": 90}}
    whole = train(tiny(experiment="whole", **changes, record=ALL))
    path = train(tiny(experiment="broken", **changes, record=ALL), crash_after=crash_after)
    resume(path, crash_after=3)
    resume(path)
    assert_same(whole, path)
    reference, dataset = dataset_of(whole), dataset_of(path)
    names, expected = assert_sound(dataset, 40), assert_sound(reference, 40)
    assert names <= expected
    # only what ran at a resume is missing: at most one episode per environment and resume
    assert len(expected - names) <= 2 * 4
    assert set(dataset.table["segment"].tolist()) <= {0, 1, 2}
    assert [note["segment"] for note in dataset.notes] == [0, 1, 2]
    rows = {name: row for row, name in enumerate(names_of(reference))}
    for row, name in enumerate(names_of(dataset)):
        same = reference.episode(rows[name])
        for column, other in zip(dataset.episode(row), same, strict=True):
            assert column.tobytes() == other.tobytes()
        assert dataset.table["key"][row] == reference.table["key"][rows[name]]


def test_what_was_rolled_back_is_recorded_again_once(tiny):
    short = {**PPO, "env": {"num_envs": 4, "max_episode_steps": 20}}
    path = train(tiny(**short, checkpoint={"every_steps": 160}, record=ALL), crash_after=7)
    beyond = dataset_of(path).table["step"] > 160
    assert beyond.any()
    resume(path)
    assert counts_of(path)["rolled_back"] == beyond.sum()
    assert_sound(dataset_of(path), 40)


def test_a_resumed_free_running_run_has_no_step_twice(tiny):
    changes = with_workers(PPO, workers=2, free_running=True)
    path = train(tiny(**changes, steps=1_200, record=ALL), crash_after=13)
    resume(path, crash_after=5)
    resume(path)
    names = assert_sound(dataset_of(path), 40)
    assert len(names) > 3


def test_a_fork_begins_a_dataset_of_its_own(tiny):
    path = train(tiny(**PPO, checkpoint={"every_steps": 160}, record=ALL))
    before = len(dataset_of(path))
    old = RunDir.open(path)
    config = override(old.config, {"experiment": "fork", "steps": 600, "record": {"every": 2}})
    forked = old.fork(config, 160, [])
    forked.close()
    resume(forked.path)
    assert len(dataset_of(path)) == before
    assert dataset_of(forked.path).table["step"].min() > 160


def test_numbers_that_depend_on_the_machine_stay_out_of_the_metrics(tiny):
    path = train(tiny(record=ALL))
    keys = {key for line in (path / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
    assert {key for key in keys if "record" in key} == {"record/chosen_episodes", "record/chosen_steps"}
    timing = json.loads((path / "timing.jsonl").read_text().splitlines()[-1])
    expected = {"record/ring_use", "record/disk_mb", "record/dropped_backpressure", "record/recorded_steps"}
    assert expected <= timing.keys()


def test_experts_beside_the_best_evaluation_are_few_and_good(tiny):
    record = {"keep": "expert", "expert_by": "best_eval", "expert_at": 0.7, "min_free_mb": 0}
    path = train(tiny(steps=800, eval={"every_steps": 100, "episodes": 2}, record=record))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if "eval/return" in row)
    table, counts = dataset_of(path).table, counts_of(path)
    assert counts["turned_away"] > 0
    assert (table["step"] > first["step"]).all()
    assert counts["turned_away"] + counts.get("recorded_episodes", 0) == rows[-2]["record/chosen_episodes"]


def test_the_plan_says_what_recording_would_take(tiny):
    parts = build(tiny(record={"keep": "reservoir", "streams": 1}, env={"num_envs": 4}))
    parts.sampler.close()
    parts.algo.close()
    # Pendulum: 3 floats seen, 1 sent, 4 numbers, 2 flags and a version
    assert "record: 400 steps x 0.25 selected x 42 B" in parts.plan
    assert "assumed compression" in parts.plan
    assert "keep reservoir within 1.0 GB" in parts.plan


def test_an_absurd_plan_is_refused_with_its_numbers(tmp_path):
    from roboloop.envs.registry import make

    env_config = {"id": "doom/health-gathering-supreme", "num_envs": 16}
    data = {"steps": 100_000_000, "runs_dir": str(tmp_path), "env": env_config}
    cfg = override(Experiment(), {**data, "record": {"keep": "all", "budget_mb": 0}})
    env = make(cfg.env)
    spec = env.spec
    env.close()
    with pytest.raises(ConfigError, match=r"record: 100,000,000 steps .* = 2,7\d\d\.\d GB raw"):
        plan.describe_recording(cfg, spec)
    assert "keep all within 5.0 GB" in plan.describe_recording(override(cfg, {"record": {"budget_mb": 5000}}), spec)


def test_a_config_with_a_mixture_survives_its_file(tiny):
    mixture = [{"keep": "expert", "percent": 25}, {"keep": "last", "percent": 75}]
    config = tiny(record={"keep": "mixture", "mixture": mixture})
    assert override(Experiment(), to_dict(config)) == config
    run = RunDir.create(config, [])
    run.close()
    assert RunDir.open(run.path).config == config
