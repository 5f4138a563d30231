"""Resumed == never stopped: weights, optimisers, temperature, replay bytes, metrics, evaluations."""

import random
from importlib.util import find_spec

import pytest

from roboloop.core.state import equal, split
from tests.run.helpers import remains, resume, train


def assert_same(never_stopped, resumed):
    """Compare two runs piece by piece, so that a failure says which piece differs."""
    a, b = remains(never_stopped), remains(resumed)
    (ta, ja), (tb, jb) = split(a), split(b)
    assert a["metrics"] == b["metrics"]
    assert ja == jb
    different = [k for k in ta if k not in tb or ta[k].tobytes() != tb[k].tobytes()]
    assert not different
    assert equal(a, b)


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_five_random_crashes_leave_no_trace(tiny, num_envs, frame_stack):
    env = {"num_envs": num_envs, "frame_stack": frame_stack}
    never_stopped = train(tiny(experiment="whole", env=env))
    draw = random.Random(f"{num_envs}-{frame_stack}")
    crashes = [draw.randrange(1, 400 // num_envs) for _ in range(5)]
    path = train(tiny(experiment="broken", env=env), crash_after=crashes[0])
    for iterations in crashes[1:]:
        resume(path, crash_after=iterations % 60)
    resume(path)
    assert_same(never_stopped, path)


@pytest.mark.parametrize(
    "changes",
    [
        {"algo": {"n_step": 3, "layer_norm": True, "normalize_obs": True}},
        {"algo": {"alpha": 0.2, "processes": 2}},
        {"update": {"at": "episode", "per_step": 0.7}},
        {"update": {"every_steps": 30, "per_step": 0.3}, "checkpoint": {"every_episode": True}},
        {"env": {"action_repeat": 2}, "replay": {"capacity": 120}},
        {"algo": {"lr_schedule": "linear"}},
    ],
    ids=["n-step", "two-processes", "between-episodes", "epochs", "wrapped-ring", "falling-steps"],
)
def test_a_crash_leaves_no_trace_with_every_option(tiny, changes):
    whole = train(tiny(experiment="whole", **changes))
    path = train(tiny(experiment="broken", **changes), crash_after=237)
    resume(path)
    assert_same(whole, path)


def test_meta_world_resumes_in_the_middle_of_an_episode(tiny):
    changes = {
        "steps": 160,
        "env": {"id": "metaworld/reach-v3", "num_envs": 2},
        "checkpoint": {"every_steps": 25},
        "eval": {"every_steps": 80, "episodes": 2},
    }
    whole = train(tiny(experiment="whole", **changes))
    path = train(tiny(experiment="broken", **changes), crash_after=53)
    resume(path)
    assert_same(whole, path)


def test_a_run_that_died_before_its_first_checkpoint_starts_again(tiny):
    whole = train(tiny(experiment="whole"))
    path = train(tiny(experiment="broken"), crash_after=20)
    resume(path)
    assert_same(whole, path)


def test_a_finished_run_can_be_extended(tiny):
    path = train(tiny())
    from roboloop.core.config import override
    from roboloop.run.rundir import RunDir

    run = RunDir.open(path, write=True)
    run.save_config(override(run.config, {"steps": 500}))
    run.close()
    resume(path)
    assert remains(path)["state"]["clock"]["step"] == 500


@pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
@pytest.mark.parametrize("at", ["steps", "episode"])
def test_a_robot_on_simulated_time_resumes_at_its_last_episode_without_a_trace(tiny, at):
    changes = {
        "steps": 200,
        "env": {"id": "panda/reach", "frame_stack": 2, "panda": {"episode_s": 4.0}},
        "sample": {"real_time": "inline"},
        "update": {"at": at, "per_step": 0.5},
        "checkpoint": {"every_episode": True},
    }
    whole = train(tiny(experiment="whole", **changes))
    path = train(tiny(experiment="broken", **changes), crash_after=67)
    resume(path, crash_after=70)
    resume(path)
    assert_same(whole, path)
