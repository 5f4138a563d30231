"""What the runner decides: when to stop, what to keep."""

import json

import pytest

from roboloop.core.errors import ConfigError
from roboloop.run import checkpoint
from roboloop.run.evaluate import Summary
from roboloop.run.posthoc import pick
from roboloop.run.rundir import RunDir
from tests.run.helpers import make_runner


def scripted(successes):
    """Return an evaluation that finds the given success rates, one after another."""
    left = iter(successes)

    def run(policy, plan, out=None, about=None, tell=print):
        success = next(left)
        return Summary(plan.episodes, success, 0.0, 1.0, 100 * success, 0.0, 1.0, 40.0)

    return run


def train(tiny, successes, **changes):
    run = RunDir.create(tiny(steps=400, checkpoint={"keep_last": 1}, **changes), [])
    runner = make_runner(run)
    runner.evaluator.run = scripted(successes)
    assert runner.train() == "done"
    runner.close()
    run.close()
    return runner


def test_training_ends_when_evaluations_in_a_row_reach_the_goal(tiny):
    evaluation = {"every_steps": 50, "stop_success": 0.9, "stop_evaluations": 2}
    runner = train(tiny, [0.5, 0.95, 0.8, 0.9, 1.0, 0.0], eval=evaluation)
    assert runner.clock.step == 250


def test_without_a_goal_training_goes_to_its_last_step(tiny):
    runner = train(tiny, [1.0] * 9, eval={"every_steps": 50})
    assert runner.clock.step == 400


def test_the_best_checkpoint_is_kept_among_newer_ones(tiny):
    runner = train(tiny, [0.1, 0.7, 0.2, 0.7, 0.3, 0.3, 0.3, 0.3], eval={"every_steps": 50})
    assert checkpoint.steps(runner.run.checkpoints) == [100, 400]


def test_no_episodes_are_no_evaluation_and_the_best_checkpoint_is_then_the_last(tiny, capsys):
    runner = train(tiny, [], eval={"episodes": 0, "every_steps": 50})
    rows = [json.loads(line) for line in runner.run.metrics.read_text().splitlines()]
    assert not [key for row in rows for key in row if key.startswith("eval/")]
    assert rows[-1]["step"] == 400
    status = runner.run.status()
    assert (status["state"], status["last_return"]) == ("done", pytest.approx(rows[-1]["train/return"]))
    assert pick(RunDir.open(runner.run.path), "best").step == 400
    assert "no checkpoint was evaluated in training: taking the last, of step 400" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval": {"episodes": -1}}, "must not be negative"),
        ({"eval": {"episodes": 0, "stop_success": 0.9}}, "stop_success needs evaluations"),
        ({"eval": {"episodes": 0}, "record": {"keep": "expert", "expert_by": "best_eval"}}, "best_eval"),
        ({"env": {"panda": {"driver": "process", "address": "127.0.0.1:7317"}}}, "set eval.episodes to 0"),
    ],
)
def test_what_needs_evaluations_or_an_arm_of_its_own_for_them_is_refused(tiny, changes, said):
    with pytest.raises(ConfigError, match=said):
        tiny(**changes).check()


def test_a_milestone_is_also_the_checkpoint_of_its_step(tiny):
    cfg = tiny(steps=220, eval={"episodes": 0}, checkpoint={"every_steps": 50, "milestone_steps": 100, "keep_last": 9})
    run = RunDir.create(cfg, [])
    runner = make_runner(run)
    runner.train()
    runner.close()
    run.close()
    assert checkpoint.steps(run.checkpoints) == [50, 100, 150, 200, 220]


def test_a_falling_step_size_is_whole_in_the_first_update_and_never_nothing(tiny):
    ppo = {"name": "ppo", "hidden": [8], "rollout_steps": 20, "minibatches": 1, "processes": 1}
    ppo |= {"lr": 1e-3, "lr_schedule": "linear"}
    runner = train(tiny, [], algo=ppo, env={"num_envs": 2}, eval={"episodes": 0}, log_every_steps=40)
    rows = [json.loads(line) for line in runner.run.metrics.read_text().splitlines()]
    assert [row["lr"] for row in rows] == pytest.approx([1e-3 * k / 10 for k in range(10, 0, -1)])
