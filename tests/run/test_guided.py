"""Guided play as a run: resumed == never stopped, workers == serial, and what does not fit is one line."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.run.build import build
from roboloop.run.record import record
from roboloop.track.read import read_jsonl
from tests.cli.test_cli import roboloop
from tests.run.helpers import remains, resume, train
from tests.run.test_resume import assert_same

DISCRIMINATOR = {"hidden": [16], "lr": 1e-3}
PLAY = {"id": "play/place", "max_episode_steps": 30, "eval_max_episode_steps": 30}
TASKS = ("place", "reach", "grasp")
LISTS = {"name": "handcrafted", "period": 7, "lists": ["reach grasp place", "place"]}
HEADS = {"hidden": [16], "head_hidden": [8], "batch_size": 16, "processes": 1}


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos")
    for task in TASKS:
        flags = ["--expert", "--task", task, "--episodes", "6", "--noise", "0.1", "--out", str(out / task)]
        assert record(["play/place", *flags]) == 0
    return out


def dac(demos: Path, **discriminator) -> dict:
    sac = {"hidden": [16, 16], "batch_size": 16, "processes": 1}
    algo = {"name": "dac", "sac": sac, "discriminator": {**DISCRIMINATOR, **discriminator}}
    algo |= {"expert": {"directory": str(demos)}, "expert_fraction": 0.5, "expert_decay": 0.99}
    return {"steps": 200, "env": PLAY, "algo": algo}


def lfgp(demos: Path, **changes) -> dict:
    algo = {"name": "lfgp", "sac": HEADS, "discriminator": DISCRIMINATOR, "tasks": list(TASKS), "schedule": LISTS}
    algo |= {"expert": {"directory": str(demos)}, "expert_fraction": 0.5, "expert_decay": 0.99}
    return {"steps": 200, "env": PLAY, "algo": {**algo, **changes}}


def examples(name: str, demos: Path, **changes) -> dict:
    algo = {"name": name, "sac": HEADS, "tasks": list(TASKS), "schedule": LISTS, "expert": {"directory": str(demos)}}
    return {"steps": 200, "env": PLAY, "algo": {**algo, **changes}}


def sac_x(schedule: dict, **changes) -> dict:
    algo = {"name": "lfgp", "rewards": "env", "sac": HEADS, "tasks": list(TASKS), "schedule": schedule}
    return {"steps": 200, "env": PLAY, "algo": {**algo, **changes}}


LEARNED = {"name": "learned", "period": 10, "temperature": 5.0, "temperature_decay": 0.9}
RUNS = {
    "dac": lambda demos: dac(demos),
    "dac-alive": lambda demos: dac(demos, ends="alive", spectral_norm=True),
    "lfgp": lambda demos: lfgp(demos),
    "lfgp-learned": lambda demos: lfgp(demos, schedule=LEARNED),
    "lfgp-soft": lambda demos: lfgp(
        demos, sac={**HEADS, "net": "soft", "module_width": 8, "gate_hidden": [8], "task_weights": "temperature"}
    ),
    "sac-x": lambda _: sac_x(LEARNED),
    "vpace": lambda demos: examples("vpace", demos, penalty_window=5),
    "sqil-one-task": lambda demos: examples("sqil", demos, tasks=["place"], schedule={"name": "fixed"}),
    "rce": lambda demos: examples("rce", demos),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_crash_leaves_no_trace(tiny, demos, run):
    """With scheduler, temperatures, expert share, discriminator, draws and the window of values."""
    changes = RUNS[run](demos)
    whole = train(tiny(experiment="whole", **changes))
    path = train(tiny(experiment="broken", **changes), crash_after=127)
    resume(path, crash_after=40)
    resume(path)
    assert_same(whole, path)


def test_what_changes_while_a_run_learns_is_in_its_checkpoint(tiny, demos):
    state = remains(train(tiny(experiment="a", **lfgp(demos, schedule=LEARNED))))["state"]
    assert state["algo"]["scheduler"]["episodes"] >= 3
    assert state["algo"]["scheduler"]["table"]
    assert len(state["algo"]["modules"]["log_alpha"]) == 3
    assert state["sampler"]["groups"][0]["memory"].any()  # whose turn it is
    state = remains(train(tiny(experiment="b", **examples("vpace", demos, penalty_window=5))))["state"]
    assert [len(values) for values in state["algo"]["teacher"]["values"]] == [5, 5, 5]


def test_how_much_each_task_acted_is_logged(tiny, demos):
    schedule = {"name": "handcrafted", "period": 10, "chance": 1.0, "lists": ["reach reach place"]}
    path = train(tiny(experiment="a", **lfgp(demos, schedule=schedule)))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    shares = [row["choice/reach"] for row in rows if "choice/reach" in row]
    assert shares[-1] == pytest.approx(20 / 29)  # of 30 steps; the last one is not looked at
    assert {row["choice/grasp"] for row in rows if "choice/grasp" in row} == {0.0}


@pytest.mark.parametrize("run", ["lfgp", "vpace"])
def test_workers_in_lock_step_choose_the_same_tasks_as_one_process(tiny, demos, run):
    env = {**PLAY, "num_envs": 4}
    changes = {**RUNS[run](demos), "env": env}
    serial = train(tiny(experiment="serial", **changes, sample={"groups": 2}))
    parallel = train(tiny(experiment="parallel", **changes, sample={"groups": 2, "workers": 2}))
    assert_same(serial, parallel)


def test_evaluation_in_the_background_says_the_same(tiny, demos):
    rows = {}
    for background in (False, True):
        eval_cfg = {"every_steps": 100, "episodes": 2, "background": background}
        path = train(tiny(experiment=str(background), **lfgp(demos), eval=eval_cfg))
        rows[background] = [row for row in read_jsonl(path / "metrics.jsonl") if "eval/return" in row]
    assert rows[True] == rows[False]
    assert len(rows[True]) == 2


def test_data_of_another_environment_or_none_at_all_is_refused(tiny, demos, tmp_path):
    with pytest.raises(ConfigError, match="gym/Pendulum-v1 has obs_shape"):
        build(tiny(**{**dac(demos / "place"), "env": {"id": "gym/Pendulum-v1"}}))
    with pytest.raises(DataError, match="has no dataset of place: roboloop record ENV --expert --task place"):
        build(tiny(**dac(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match=r"leave env.frame_stack at 1"):
        tiny(**{**dac(demos), "env": {**PLAY, "frame_stack": 2}}).check()


@pytest.mark.parametrize("name", ["lfgp", "vpace"])
def test_a_task_without_a_dataset_is_named_with_the_command_that_makes_one(tiny, demos, tmp_path, name):
    shutil.copytree(demos / "place", tmp_path / "some" / "place")
    changes = lfgp(tmp_path / "some") if name == "lfgp" else examples("vpace", tmp_path / "some")
    with pytest.raises(DataError, match="has no dataset of reach, grasp: roboloop record ENV --expert --task reach"):
        build(tiny(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo": {"schedule": {"name": "fixed", "task": "plac"}}}, "schedule.task: unknown task 'plac'; did you mean"),
        ({"algo": {"schedule": {**LISTS, "lists": ["reach jump"]}}}, "schedule.lists: unknown task 'jump'"),
        ({"algo": {"schedule": {"name": "fixed", "task": "move"}}}, "schedule.task: unknown task 'move'"),
        ({"algo": {"tasks": ["place", "fly"]}}, "algo.tasks: unknown task 'fly'"),
        ({"algo": {"schedule": LEARNED}, "sample": {"groups": 1, "workers": 1}}, "schedule 'learned' is told of each"),
        ({"algo": {"schedule": LEARNED}, "replay": {"capacity": 31}, "algo.sac": 8}, "has 31 rows for one of 30 steps"),
        ({"env": {"id": "tiny/point+mirror", "num_envs": 2}}, "lfgp learns in one environment"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny, demos, changes, message):
    algo = {**lfgp(demos)["algo"], **changes.get("algo", {})}
    if size := changes.pop("algo.sac", None):
        algo["sac"] = {**HEADS, "batch_size": size}
    cfg = tiny(**{**lfgp(demos), **changes, "algo": algo})

    def begin():
        cfg.check()
        build(cfg)

    with pytest.raises(ConfigError) as error:
        begin()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_environments_without_formulas_of_tasks_can_still_be_learned_from_their_own_expert(tiny, tmp_path):
    from roboloop.envs.registry import auxiliary_tasks

    cfg = tiny(**{**sac_x({"name": "uniform"}, tasks=[]), "env": {"id": "gym/Pendulum-v1"}})
    with pytest.raises(ConfigError, match="declares no auxiliary tasks"):
        build(cfg)
    with pytest.raises(ConfigError, match="declares no auxiliary tasks"):
        auxiliary_tasks(cfg.env)
    assert record(["gym/Pendulum-v1", "--random", "--episodes", "3", "--out", str(tmp_path / "swings")]) == 0
    changes = examples("sqil", tmp_path / "swings", tasks=[], schedule={"name": "uniform"})
    path = train(tiny(**{**changes, "steps": 80, "env": {"id": "gym/Pendulum-v1", "max_episode_steps": 40}}))
    assert "example_value/Pendulum-v1" in (path / "metrics.jsonl").read_text()


def test_it_is_trained_and_evaluated_as_a_user_types_it(demos, tmp_path):
    flags = (
        "--env play/place --steps 150 --warmup-steps 50 --eval.every-steps 0 --eval.episodes 2 --trackers"
        " --algo.sac.processes 1 --algo.sac.batch-size 16 --algo.sac.hidden 16 --env.eval-max-episode-steps 20"
    )
    common = ("--algo.expert.directory", demos, "--runs-dir", tmp_path, *flags.split())
    done = roboloop("train", "--algo", "dac", *common, "--algo.discriminator.hidden", "16")
    assert done.returncode == 0, done.stderr
    assert "done at step 150" in done.stdout
    done = roboloop("eval", tmp_path / "default" / "place" / "0", "--episodes", 2)
    assert done.returncode == 0, done.stderr
    assert "held-out evaluation: success 0%" in done.stdout
    done = roboloop("train", "--algo", "dac", "--env", "play/place", "--runs-dir", tmp_path / "b")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "algo.expert.directory" in done.stderr


def test_each_intention_can_be_evaluated_by_its_own_task(tiny, demos):
    path = train(tiny(**lfgp(demos)))
    whole = roboloop("eval", path, "--episodes", 3)
    assert whole.returncode == 0, whole.stderr
    done = roboloop("eval", path, "--episodes", 3, "--task", "reach")
    assert done.returncode == 0, done.stderr
    (rows,) = (path / "eval").glob("*-reach.jsonl")
    header, *episodes = map(json.loads, rows.read_text().splitlines())
    assert header["schedule"] == "reach"
    assert all(row["return"] > 0 for row in episodes)  # being far away is worth little to reach, and nothing to place
    done = roboloop("eval", path, "--episodes", 3, "--schedule", "reach:10,place")
    assert done.returncode == 0, done.stderr
    done = roboloop("eval", path, "--episodes", 3, "--schedule", "reech:10,place")
    assert done.returncode == 2
    assert "did you mean 'reach'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
def test_a_robot_in_real_time_follows_its_schedule_and_resumes_at_its_last_episode(tiny):
    changes = {
        **sac_x({"name": "uniform", "period": 7}, tasks=[]),
        "env": {"id": "panda/push", "panda": {"episode_s": 4.0}},
        "sample": {"real_time": "inline"},
        "update": {"per_step": 0.5},
        "checkpoint": {"every_episode": True},
    }
    whole = train(tiny(experiment="whole", **changes))
    path = train(tiny(experiment="broken", **changes), crash_after=97)
    resume(path)
    assert_same(whole, path)


def test_a_fork_with_another_period_is_refused_in_one_line(tiny, demos):
    path = train(tiny(**lfgp(demos)))
    done = roboloop("train", "--fork", path, "--at", 100, "--experiment", "other", "--algo.schedule.period", 3)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "a policy's memory of 7 numbers, the policy now has 12" in done.stderr
