"""What the runner decides: when to stop, what to keep."""

import json
from types import SimpleNamespace

import pytest

from roboloop import cli
from roboloop.core.errors import ConfigError
from roboloop.run import checkpoint, clock
from roboloop.run.build import build
from roboloop.run.evaluate import Summary
from roboloop.run.rundir import RunDir
from roboloop.run.runner import Runner
from roboloop.run.training import Training
from roboloop.track import terminal
from tests.run.helpers import make_runner
from tests.track.test_terminal import Terminal


def test_a_run_is_done_whatever_happens_to_its_picture(tiny, monkeypatch, capsys):
    def broken(runs, out):
        raise RuntimeError("latex could not be found")

    monkeypatch.setattr("roboloop.track.plots.plot_runs", broken)
    done = Training([]).start(tiny(steps=80))
    assert done.state == "done"
    assert "no curve: RuntimeError" in capsys.readouterr().out


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
    assert RunDir.open(runner.run.path).pick("best").step == 400
    assert "no checkpoint was evaluated in training: taking the last, of step 400" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval": {"episodes": -1}}, "must not be negative"),
        ({"eval": {"episodes": 0, "stop_success": 0.9}}, "stop_success needs evaluations"),
        ({"eval": {"episodes": 0}, "record": {"keep": "expert", "expert_by": "best_eval"}}, "best_eval"),
        (
            {"env": {"id": "panda/reach", "panda": {"driver": "process", "address": "127.0.0.1:7317"}}},
            "set eval.episodes to 0",
        ),
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


def test_the_time_left_is_that_of_learning_and_not_of_the_warm_up(tiny, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run = RunDir.create(tiny(steps=200, warmup_steps=100, eval={"episodes": 0}), [])
    runner = make_runner(run)
    update, told = runner.algo.update, {}

    def slowly(batch):
        now[0] += 1.0  # and steps of the environment take no time
        return update(batch)

    def note(step, success, episode_return, updates_per_s, steps_per_s, eta_s):
        told[step] = eta_s

    runner.algo.update, runner.progress.update = slowly, note
    runner.train()
    runner.close()
    run.close()
    assert told == {50: None, 100: None, 150: pytest.approx(50.0), 200: 0.0}


def test_a_terminal_sees_steps_between_two_logs_and_evaluations(tiny, monkeypatch):
    monkeypatch.setattr(terminal, "_LIVE_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    screen = Terminal()
    run = RunDir.create(tiny(steps=100, log_every_steps=50, eval={"every_steps": 100, "episodes": 2}), [])
    runner = Runner(run, build(run.config), {}, terminal.Progress(100, stream=screen))
    runner.train()
    runner.close()
    run.close()
    assert "37/100 steps (37%)" in screen.getvalue()
    assert "evaluating 1/2" in screen.getvalue()


def test_training_ends_with_done_and_not_with_progress(tmp_path, capsys):
    flags = ["--env", "gym/Pendulum-v1", "--env.num-envs", "8", "--steps", "100", "--log-every-steps", "8"]
    flags += ["--warmup-steps", "1000", "--eval.episodes", "0", "--trackers", "--sample.steps", "4"]
    assert cli.main(["train", *flags, "--runs-dir", str(tmp_path), "--experiment", "e"]) == 0
    lines = capsys.readouterr().out.splitlines()
    done = next(i for i, line in enumerate(lines) if line.startswith("done at step 128"))
    assert lines[done - 1].startswith("100/100 steps (100%)")
    assert not any("steps/s" in line for line in lines[done:])
