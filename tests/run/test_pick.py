"""Pick-and-place as a run: resumed == never stopped, workers == serial, and what does not fit is one line."""

from __future__ import annotations

import json

import pytest

from roboloop.core.errors import ConfigError
from roboloop.run.build import build
from roboloop.track.read import read_jsonl
from tests.cli.test_cli import roboloop
from tests.run.helpers import resume, train
from tests.run.test_resume import assert_same

SAC = {"hidden": [16, 16], "batch_size": 16, "processes": 1}


def picking(kind: str, env: str = "tiny/pegs", **changes) -> dict:
    algo = {"name": "pick", "pick": kind, "sac": SAC, **changes}
    return {"steps": 200, "env": {"id": env, "max_episode_steps": 6, "eval_max_episode_steps": 6}, "algo": algo}


RUNS = {
    "mvp": picking("mvp"),
    "mvp-in-training": picking("mvp", pick_in_training="mvp", top_fraction=0.5, sac={**SAC, "normalize_obs": True}),
    "uniform": picking("uniform", pick_copies=4),
    "joint": picking("joint"),
    "autoregressive": picking("autoregressive"),
    "joint-corner": picking("joint", env="tiny/pegs-corner"),
    "mvp-corner": picking("mvp", env="tiny/pegs-corner"),
    "mvp-seen": picking("mvp", env="tiny/pegs-seen", pick_in_training="mvp"),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_crash_leaves_no_trace(tiny, run):
    """With the draws of next picks, and the candidates in the replay."""
    whole = train(tiny(experiment="whole", **RUNS[run]))
    path = train(tiny(experiment="broken", **RUNS[run]), crash_after=127)
    resume(path, crash_after=40)
    resume(path)
    assert_same(whole, path)


@pytest.mark.parametrize("run", ["mvp-in-training", "autoregressive", "mvp-seen"])
def test_workers_in_lock_step_pick_as_one_process_does(tiny, run):
    changes = {**RUNS[run], "env": {**RUNS[run]["env"], "num_envs": 4}}
    serial = train(tiny(experiment="serial", **changes, sample={"groups": 2}))
    parallel = train(tiny(experiment="parallel", **changes, sample={"groups": 2, "workers": 2}))
    assert_same(serial, parallel)


def test_evaluation_in_the_background_picks_the_same(tiny):
    rows = {}
    for background in (False, True):
        eval_cfg = {"every_steps": 100, "episodes": 2, "background": background}
        path = train(tiny(experiment=str(background), **picking("mvp"), eval=eval_cfg))
        rows[background] = [row for row in read_jsonl(path / "metrics.jsonl") if "eval/return" in row]
    assert rows[True] == rows[False]
    assert len(rows[True]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"id": "tiny/point"}}, r"set env.soft.pick: chosen"),
        ({"env": {"id": "tiny/pegs", "frame_stack": 2}}, r"leave env.frame_stack at 1"),
        ({"env": {"id": "tiny/point+mirror", "num_envs": 2}}, "is a set"),
        ({"algo": {"name": "pick", "pick": "best", "sac": SAC}}, "'mvp', 'uniform', 'joint'"),
        ({"algo": {"name": "sac"}}, "picks"),
        ({"replay": {"capacity": 1}}, "capacity"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny, changes, message):
    def begin():
        cfg = tiny(**{**picking("mvp"), **changes})
        cfg.check()
        build(cfg)

    with pytest.raises(ConfigError, match=message) as refused:
        begin()
    assert "\n" not in str(refused.value)


def test_train_and_eval_from_the_command_line(tmp_path):
    flags = (
        "--algo pick --env tiny/pegs --steps 120 --warmup-steps 40 --log-every-steps 40 --eval.every-steps 60"
        " --eval.episodes 2 --algo.sac.hidden 8 8 --algo.sac.batch-size 8 --algo.sac.processes 1"
        " --algo.top-fraction 0.3 --checkpoint.every-steps 60 --checkpoint.milestone-steps 60 --replay.capacity 1000"
    ).split()
    done = roboloop("train", *flags, "--experiment", "a", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "a" / "pegs" / "0"
    for more in ([], ["--checkpoint", "60"], ["--checkpoint", "all"]):
        done = roboloop("eval", run, "--episodes", "3", *more)
        assert done.returncode == 0, done.stderr
    assert list((run / "eval").glob("*.jsonl"))
    done = roboloop("train", "--algo", "pick", "--algo.pick", "mpv")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_an_mvp_run_that_is_asked_to_pick_evenly_is_the_uniform_run(tiny):
    """They learn alike, so that one training tells both."""
    rows = {}
    for kind, asked in (("mvp", ["--pick", "uniform"]), ("uniform", [])):
        path = train(tiny(experiment=kind, **picking(kind, pick_copies=2)))
        done = roboloop("eval", path, "--checkpoint", "last", "--episodes", "4", *asked)
        assert done.returncode == 0, done.stderr
        header, *rows[kind] = read_jsonl(next((path / "eval").glob("*.jsonl")))
        assert header.get("pick", "") == ("uniform" if asked else "")
    assert rows["mvp"] == rows["uniform"]


def test_another_way_to_pick_is_refused_where_the_actor_picks(tiny):
    path = train(tiny(experiment="joint", **picking("joint")))
    done = roboloop("eval", path, "--pick", "mvp")
    assert done.returncode == 2
    assert done.stderr.endswith("trained pick joint\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_picks_that_miss_are_in_the_metrics_of_training(tiny, workers):
    pytest.importorskip("mujoco")
    env = {"id": "soft/rope-straighten", "max_episode_steps": 5, "eval_max_episode_steps": 5, "soft": {"pool": 2}}
    algo = {"name": "pick", "pick": "joint", "sac": SAC}
    path = train(tiny(steps=80, warmup_steps=20, log_every_steps=20, env=env, algo=algo, sample={"workers": workers}))
    rows = list(map(json.loads, (path / "metrics.jsonl").read_text().splitlines()))
    missed = [row["train/missed_picks"] for row in rows if "train/missed_picks" in row]
    assert missed[0] == 0  # at first picks are drawn from candidates
    assert 1 < max(missed) <= 5  # an actor that knows nothing picks anywhere
