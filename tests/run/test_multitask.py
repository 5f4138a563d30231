"""Runs on a set of tasks: resumed == never stopped, workers == serial, numbers of each task, one line for bad input."""

import math
from dataclasses import replace

import pytest

from roboloop.core.errors import ConfigError
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run import build
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.run.posthoc import EvalRequest, evaluate_run
from roboloop.track.metrics import JsonlLog
from roboloop.track.read import read_jsonl
from tests.run.helpers import remains, resume, train
from tests.run.test_resume import assert_same

SHARED = {"name": "mtsac", "hidden": [12], "batch_size": 16, "processes": 1}
NETS = {
    "heads": {**SHARED, "head_hidden": [8]},
    "soft": {**SHARED, "net": "soft", "module_width": 8, "gate_hidden": [8, 8], "task_weights": "temperature"},
    "plain": {**SHARED, "net": "plain", "normalize_reward": True, "normalize_obs": True, "n_step": 3},
}
ENV = {"id": "tiny/point+mirror", "num_envs": 4, "max_episode_steps": None, "eval_max_episode_steps": None}


def changes(net="heads", **more):
    return {"env": ENV, "algo": NETS[net], "eval": {"every_steps": 160, "episodes": 3}, **more}


def rows_of(path):
    return read_jsonl(path / "metrics.jsonl")


@pytest.mark.parametrize("net", NETS)
def test_a_crash_leaves_no_trace(tiny, net):
    whole = train(tiny(experiment="whole", **changes(net)))
    path = train(tiny(experiment="broken", **changes(net)), crash_after=61)
    resume(path, crash_after=9)
    resume(path)
    assert_same(whole, path)


@pytest.mark.parametrize("net", ["heads", "soft"])
def test_workers_in_lock_step_equal_serial_also_where_a_worker_has_some_tasks_only(tiny, net):
    """Four groups of one environment: each group has one task, each worker two."""
    serial = train(tiny(experiment="serial", **changes(net, sample={"groups": 4})))
    parallel = train(tiny(experiment="parallel", **changes(net, sample={"groups": 4, "workers": 2})))
    assert_same(serial, parallel)


def test_environments_in_processes_of_their_own_do_the_same_tasks(tiny):
    here = train(tiny(experiment="here", steps=120, **changes()))
    there = train(tiny(experiment="there", steps=120, **changes(sample={"inference": "central"})))
    assert_same(here, there)


def test_metaworld_resumes_in_the_middle_of_its_episodes(tiny):
    pytest.importorskip("metaworld")
    env = {"id": "metaworld/reach-v3+window-open-v3", "num_envs": 2}
    small = changes(env=env, steps=160, checkpoint={"every_steps": 26}, eval={"every_steps": 80, "episodes": 1})
    whole = train(tiny(experiment="whole", **small))
    path = train(tiny(experiment="broken", **small), crash_after=53)
    resume(path)
    assert_same(whole, path)


def test_every_tasks_success_and_return_stand_in_training_and_evaluation_rows(tiny):
    rows = rows_of(train(tiny(**changes())))
    trained = [row for row in rows if "train/return" in row]
    evaluated = [row for row in rows if "eval/return" in row]
    assert len(evaluated) == 3
    for row in trained:
        assert {"train/success/point", "train/return/point", "train/success/mirror", "train/return/mirror"} <= set(row)
    for row in evaluated:
        for kind in ("success", "return"):
            parts = [row[f"eval/{kind}/{task}"] for task in ("point", "mirror")]
            assert row[f"eval/{kind}"] == pytest.approx(sum(parts) / 2)
    assert {"alpha/point", "alpha/mirror", "entropy/point", "entropy/mirror"} <= set(rows[-2] | trained[-1])


def test_evaluation_in_the_background_says_the_same(tiny):
    inside = train(tiny(experiment="inside", **changes()))
    beside = train(tiny(experiment="beside", **changes(eval={"every_steps": 160, "episodes": 3, "background": True})))
    here, there = ([row for row in rows_of(path) if "eval/return" in row] for path in (inside, beside))
    assert here == there


def test_eval_prints_a_table_of_tasks_and_goes_on_where_it_was_killed(tiny, capsys):
    path = train(tiny(**changes()))
    evaluate_run(path, "last", EvalRequest(episodes=7))
    said = capsys.readouterr().out
    assert "over 14 episodes" in said
    assert "point" in said
    assert "mirror" in said
    (out,) = (path / "eval").glob("*.jsonl")
    whole = read_jsonl(out)
    assert [row["task"] for row in whole[1:3]] == ["point", "mirror"]
    assert len(whole) == 15
    out.unlink()
    log = JsonlLog(out)
    for row in (whole[0], *whole[3:6], whole[9]):
        log.write(row)
    log.close()
    evaluate_run(path, "last", EvalRequest(episodes=7))
    key = lambda line: line.get("episode", -1)  # noqa: E731
    assert sorted(read_jsonl(out), key=key) == sorted(whole, key=key)


def test_each_task_is_evaluated_on_the_goals_of_its_own_evaluation():
    two, one = EnvConfig(id="tiny/mirror+point"), EnvConfig(id="tiny/point")
    from roboloop.algos.policy import UniformPolicy

    class Still(UniformPolicy):
        def act(self, obs, memory, explore, rng):
            decision = super().act(obs, memory, explore, rng)
            return decision._replace(action=decision.action * 0)

    plan = Plan(6, 0, TEST)
    of_set = Evaluator(lambda e: make(two, column=e), 1, lanes=4).run(Still(make(two).spec), plan)
    alone = Evaluator(lambda e: make(one), 1, lanes=4).run(Still(make(one).spec), plan)
    assert of_set.by_task["point"]["return"] == pytest.approx(alone.episode_return)
    assert not math.isnan(of_set.by_task["mirror"]["success_low"])


def test_recorded_episodes_know_their_task(tiny):
    from roboloop.data.dataset import Dataset

    path = train(tiny(**changes(record={"keep": "all", "min_free_mb": 0})))
    table = Dataset.open(path / "dataset").table
    assert set(table["task"].tolist()) == {"point", "mirror"}
    assert all(task == ("point", "mirror")[env % 2] for task, env in zip(table["task"], table["env"], strict=True))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env": {**ENV, "num_envs": 3}}, "env.num_envs must be a multiple of the 2 tasks of tiny/point"),
        ({"env": {**ENV, "id": "tiny/point"}}, "mtsac needs a set of tasks"),
        ({"env": {**ENV, "id": "tiny/point+recall"}}, "cannot be one set"),
        ({"algo": {**NETS["heads"], "batch_size": 18}}, "batch_size 18 does not split into 2 tasks x 2 shards"),
        (
            {"sample": {"groups": 4, "workers": 2, "free_running": True}},
            "with sample.free_running each group needs every task: 1 envs are no multiple of 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_made(tiny, more, message):
    cfg = tiny(**{**changes(), **more})

    def begin():
        cfg.check()
        build.build(cfg)

    with pytest.raises(ConfigError) as error:
        begin()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_set_can_be_learned_by_single_task_sac_too(tiny):
    path = train(tiny(env=ENV, eval={"every_steps": 200, "episodes": 2}))
    assert remains(path)["state"]["clock"]["step"] == 400
    assert "eval/success/mirror" in rows_of(path)[-1]


def test_lanes_are_as_many_for_each_task():
    cfg = EnvConfig(id="metaworld/mt3")
    assert build.eval_lanes(cfg, 50) == 9
    assert build.eval_lanes(cfg, 1) == 3
    assert build.eval_lanes(replace(cfg, id="metaworld/mt50"), 5) == 50
    assert build.eval_lanes(replace(cfg, id="metaworld/reach-v3"), 50) == 10
