"""Who steps the environments changes nothing in lock step, and loses nothing when workers run free."""

import json
from typing import ClassVar

import pytest

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.core.config import override
from roboloop.core.errors import ConfigError
from roboloop.run.background import BackgroundEvaluator
from roboloop.run.rundir import RunDir
from roboloop.track.read import read_jsonl
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same

PPO = {
    "env": {"num_envs": 4},
    "algo": {"name": "ppo", "hidden": [16], "rollout_steps": 10, "epochs": 2, "minibatches": 2, "processes": 1},
}
RECURRENT = {**PPO, "algo": {**PPO["algo"], "core": "gru", "core_size": 8, "minibatches": 1, "normalize_obs": True}}
SAC = {"env": {"num_envs": 4, "frame_stack": 2}, "sample": {"steps": 2}}
DOOM = {
    "steps": 160,
    "env": {
        "id": "doom/basic",
        "num_envs": 4,
        "action_repeat": 4,
        "max_episode_steps": 60,
        "eval_max_episode_steps": 60,
    },
    "algo": {**RECURRENT["algo"], "conv_channels": [4, 4, 4], "conv_features": 8},
}
CARTPOLE = {**PPO, "env": {"id": "gym/CartPole-v1", "num_envs": 4}}


def with_workers(changes, **sample):
    return {**changes, "sample": {**changes.get("sample", {}), "groups": 2, **sample}}


KINDS = {"sac": SAC, "ppo": PPO, "recurrent": RECURRENT, "choices": CARTPOLE, "doom": DOOM}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_a_run_with_workers_in_lock_step_equals_the_serial_one_bit_for_bit(tiny, changes):
    serial = train(tiny(experiment="serial", **with_workers(changes)))
    parallel = train(tiny(experiment="parallel", **with_workers(changes, workers=2)))
    assert_same(serial, parallel)


@pytest.mark.parametrize("changes", [SAC, PPO], ids=["sac", "ppo"])
def test_more_environments_than_fall_evenly_into_groups_train_the_same_bits_in_any_number_of_workers(tiny, changes):
    uneven = {**changes, "env": {**changes["env"], "num_envs": 8}, "steps": 320}
    serial = train(tiny(experiment="serial", **{**uneven, "sample": {"groups": 5}}))
    path = train(tiny(experiment="parallel", **{**uneven, "sample": {"groups": 5, "workers": 3}}), crash_after=2)
    resume(path)
    assert_same(serial, path)


def test_groups_of_different_size_run_free_where_a_replay_is_learned_from(tiny):
    free = {"groups": 3, "workers": 2, "free_running": True}
    rows = read_jsonl(train(tiny(**{**SAC, "env": {"num_envs": 5}, "sample": free})) / "metrics.jsonl")
    assert rows[-1]["step"] >= 400
    with pytest.raises(ConfigError, match=r"ppo needs groups of equal size: env\.num_envs 5 is no multiple"):
        tiny(**{**PPO, "env": {"num_envs": 5}, "sample": free}).check()


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"groups": 5}, "sample.groups 5 is more than env.num_envs 4"),
        ({"groups": 2, "workers": 3}, "sample.workers 3 is more than sample.groups 2"),
    ],
)
def test_a_group_without_environment_and_a_worker_without_group_are_refused(tiny, sample, said):
    with pytest.raises(ConfigError, match=said):
        tiny(env={"num_envs": 4}, sample=sample).check()


@pytest.mark.parametrize("changes", [SAC, PPO, DOOM], ids=["sac", "ppo", "doom"])
def test_a_crash_with_workers_leaves_no_trace(tiny, changes):
    whole = train(tiny(experiment="whole", **with_workers(changes, workers=2)))
    path = train(tiny(experiment="broken", **with_workers(changes, workers=2)), crash_after=7)
    resume(path, crash_after=3)
    resume(path)
    assert_same(whole, path)


def test_a_run_begun_with_workers_can_be_finished_without_them(tiny):
    whole = train(tiny(experiment="whole", **with_workers(PPO)))
    path = train(tiny(experiment="broken", **with_workers(PPO, workers=2)), crash_after=6)
    run = RunDir.open(path, write=True)
    run.save_config(override(run.config, {"sample": {"workers": 0}}))
    run.close()
    resume(path)
    assert_same(whole, path)


@pytest.mark.parametrize("changes", [SAC, PPO], ids=["sac", "ppo"])
def test_free_running_workers_keep_exact_counts_over_crashes(tiny, changes):
    changes = with_workers(changes, workers=2, free_running=True)
    path = train(tiny(**changes), crash_after=15)
    resume(path, crash_after=11)
    resume(path)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "updates" in row]
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    for row in rows:
        per_rollout = 4 if changes is not SAC and "algo" in changes else None
        if per_rollout:  # one iteration of 2 epochs x 2 minibatches for each 4 x 10 steps
            assert row["updates"] == row["step"] // 40 * per_rollout
        else:  # one update per step after the warm-up, paid at every rollout of 2 x 2 steps
            assert row["updates"] == max(0, row["step"] - 60)
    assert rows[-1]["episodes"] in range(rows[-1]["step"] // 40 - 8, rows[-1]["step"] // 40 + 1)


def test_evaluation_in_the_background_writes_the_same_results_as_in_the_loop(tiny):
    inside = train(tiny(experiment="inside"))
    beside = train(tiny(experiment="beside", eval={"every_steps": 150, "episodes": 2, "background": True}))

    def evaluations(path):
        return [row for row in read_jsonl(path / "metrics.jsonl") if "eval/return" in row]

    assert evaluations(inside) == evaluations(beside)
    assert len(evaluations(beside)) == 3


def test_a_crash_during_a_background_evaluation_leaves_no_trace(tiny):
    background = {"every_steps": 150, "episodes": 2, "background": True}
    whole = train(tiny(experiment="whole", eval=background))
    path = train(tiny(experiment="broken", eval=background), crash_after=220)
    resume(path)
    assert_same(whole, path)


def test_training_goes_on_while_an_evaluation_runs_in_the_background(tiny, monkeypatch):
    order = []
    for name in ("begin", "result"):
        real = getattr(BackgroundEvaluator, name)
        monkeypatch.setattr(BackgroundEvaluator, name, lambda *a, n=name, r=real: (order.append(n), r(*a))[1])
    real_update = ReplayLearner.update
    monkeypatch.setattr(ReplayLearner, "update", lambda *a: (order.append("update"), real_update(*a))[1])
    train(
        tiny(eval={"every_steps": 150, "episodes": 2, "background": True}, checkpoint={"every_steps": 0, "every_s": 0})
    )
    # a checkpoint is written when an evaluation begins, and does not wait for it
    assert order[order.index("begin") + 1] == "update"
    assert order.count("begin") == order.count("result") == 3


def test_observers_see_training_from_the_side(tiny, tmp_path):
    Seen.events.clear()
    train(tiny(observers=[f"{__name__}:Seen"]))
    kinds = {kind for kind, _ in Seen.events}
    assert kinds == {"step", "episode", "checkpoint"}
    assert [facts["episode"] for kind, facts in Seen.events if kind == "episode"] == list(range(10))


class Seen:
    events: ClassVar[list] = []

    def on_training_step(self, facts):
        self.events.append(("step", facts))

    def on_episode(self, facts):
        self.events.append(("episode", facts))

    def on_checkpoint(self, facts):
        self.events.append(("checkpoint", facts))
