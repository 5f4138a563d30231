"""What the runner decides: when to stop, what to keep."""

from roboloop.run import checkpoint
from roboloop.run.evaluate import Summary
from roboloop.run.rundir import RunDir
from tests.run.helpers import make_runner


def scripted(successes):
    """Return an evaluation that finds the given success rates, one after another."""
    left = iter(successes)

    def run(policy, plan, out=None, about=None):
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
