"""A search makes up its runs as it goes, ends bad ones early, and goes on after being killed."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.launch.search import check_space, curve, distributions, open_study, sampler
from roboloop.launch.sweep import Sweep as Wanted
from roboloop.launch.sweep import read_sweep
from tests.launch.kit import Sweep, wait_until

optuna = pytest.importorskip("optuna", reason="extra 'search' is not installed")

SPACE = "{base: cartpole, space: {algo.gamma: {low: 0.5, high: 0.999}, algo.epochs: {low: 2, high: 12}}}"


@pytest.fixture
def wanted(tmp_path):
    return read_sweep(written(tmp_path))


def written(tmp_path: Path, text: str = SPACE) -> Path:
    (tmp_path / "s.yaml").write_text(text)
    return tmp_path / "s.yaml"


def searching(tmp_path: Path, seeds: str, behaviour: dict[int, str], trials: int) -> Sweep:
    sweep = Sweep(tmp_path, seeds, behaviour, axis="", source=written(tmp_path))
    sweep.args += ["--search", "optuna", "--trials", str(trials)]
    return sweep


def study(tmp_path: Path) -> optuna.Study:
    journal = str(tmp_path / "runs" / "s" / ".sweep" / "optuna.jsonl")
    backend = optuna.storages.journal.JournalFileBackend(journal)
    return optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))


def trials(tmp_path: Path) -> list:
    return study(tmp_path).trials


def test_a_search_tries_settings_and_says_which_were_best(tmp_path):
    sweep = searching(tmp_path, "0", {}, 5)
    code, out = sweep.run("--slots", 2)
    assert code == 0, out
    assert sorted(sweep.started()) == [f"trial-{i:04}/0" for i in range(5)]
    told = trials(tmp_path)
    for trial in told:
        config = (
            tmp_path / "runs" / "s" / f"trial-{trial.number:04}" / "CartPole-v1" / "0" / "config.yaml"
        ).read_text()
        assert f"gamma: {trial.params['algo.gamma']}" in config
        assert f"epochs: {trial.params['algo.epochs']}" in config
        assert trial.value == pytest.approx(-abs(trial.params["algo.gamma"] - 0.9))
    top = max(told, key=lambda trial: trial.value)
    assert f"best: trial-{top.number:04}, score" in out
    # asked for more, it goes on; asked again, it does nothing
    sweep.args[-1] = "6"
    assert sweep.run()[0] == 0
    assert sweep.run()[0] == 0
    assert sweep.started().count("trial-0005/0") == 1
    assert len(sweep.started()) == 6


def test_a_bad_trial_is_ended_early(tmp_path):
    sweep = searching(tmp_path, "0", {0: "later trials are bad"}, 6)
    code, out = sweep.run("--slots", 1)
    assert code == 0, out
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 4 + ["PRUNED"] * 2
    assert "4 done, 2 pruned" in out


def test_a_trial_is_worth_the_mean_of_its_seeds_and_a_failed_one_nothing(tmp_path):
    sweep = searching(tmp_path, "0 1", {}, 2)
    assert sweep.run()[0] == 0
    assert sorted(sweep.started()) == ["trial-0000/0", "trial-0000/1", "trial-0001/0", "trial-0001/1"]
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 2
    sweep.args[-1] = "3"
    sweep.env["BEHAVIOUR"] = json.dumps({0: "fails"})
    assert sweep.run("--slots", 1, "--retries", 0)[0] == 10
    assert [trial.state.name for trial in trials(tmp_path)][2] == "FAIL"
    assert "trial-0002/1" not in sweep.started()


def test_a_failed_trial_ends_its_other_seeds(tmp_path):
    sweep = searching(tmp_path, "0 1", {0: "fails", 1: "waits"}, 1)
    code, out = sweep.run("--slots", 2, "--retries", 0)
    assert code == 10, out
    assert "1 pruned, 1 failed" in out
    assert [trial.state.name for trial in trials(tmp_path)] == ["FAIL"]


def test_a_pruned_trial_ends_its_other_seeds(tmp_path):
    sweep = searching(tmp_path, "0 1", {0: "later trials are bad", 1: "later trials are bad"}, 4)
    assert sweep.run("--slots", 2)[0] == 0
    sweep.args[-1] = "5"
    code, out = sweep.run("--slots", 2)
    assert code == 0, out
    for seed in range(2):
        assert f"pruned   {tmp_path}/runs/s/trial-0004/CartPole-v1/{seed}" in out
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 4 + ["PRUNED"]


def test_runs_of_a_trial_that_was_over_before_the_launcher_died_are_adopted_and_ended(tmp_path):
    sweep = searching(tmp_path, "0 1", {0: "waits", 1: "waits"}, 1)
    launcher = sweep.begin("--slots", 2)
    wait_until(lambda: len(sweep.started()) == 2)
    launcher.kill()
    launcher.communicate()
    study(tmp_path).tell(0, state=optuna.trial.TrialState.PRUNED)
    sweep.args[-1] = "2"
    sweep.env["BEHAVIOUR"] = "{}"
    code, out = sweep.run("--slots", 2)
    assert code == 0, out
    said = [line.split()[0] for line in out.splitlines() if "/trial-000" in line]
    assert Counter(said) == Counter(adopted=2, pruned=2, started=2, done=2)
    assert max(accumulate(1 if word in ("adopted", "started") else -1 for word in said)) == 2  # as many as slots


def test_a_killed_search_goes_on_with_its_trials(tmp_path):
    sweep = searching(tmp_path, "0", {0: "waits once"}, 2)
    launcher = sweep.begin("--slots", 2)
    wait_until(lambda: len(sweep.started()) == 2)
    launcher.kill()
    launcher.communicate()
    journal = tmp_path / "runs" / "s" / ".sweep" / "optuna.jsonl"
    with open(journal, "ab") as file:  # as if it had been killed while writing
        file.write(b'{"op_code": 7, "wor')
    again = sweep.begin("--slots", 2)
    wait_until(lambda: "adopted" in again.stdout.readline())
    for number in range(2):
        status = tmp_path / "runs" / "s" / f"trial-{number:04}" / "CartPole-v1" / "0" / "status.json"
        wait_until(status.exists)
        os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0, out
    assert sorted(sweep.started()) == ["trial-0000/0"] * 2 + ["trial-0001/0"] * 2
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 2


def test_a_metric_that_no_run_has_is_named_at_once_and_mended_by_the_right_one(tmp_path):
    sweep = searching(tmp_path, "0 1", {}, 2)
    written(tmp_path, SPACE.replace("space:", "metric: eval/retrun, space:"))
    for _ in range(2):  # asked again it says so again, and starts nothing more
        code, out = sweep.run("--slots", 1)
        assert code == 2, out
        assert "the search looks at 'eval/retrun'" in out
        assert out.splitlines()[-1].endswith("does not have; did you mean 'eval/return'?")
        assert sweep.started() == ["trial-0000/0"]
        assert [trial.state.name for trial in trials(tmp_path)] == ["RUNNING"]
    written(tmp_path, SPACE.replace("space:", "metric: eval/return, space:"))
    assert sweep.run("--slots", 1)[0] == 0
    assert sorted(sweep.started()) == ["trial-0000/0", "trial-0000/1", "trial-0001/0", "trial-0001/1"]
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 2
    written(tmp_path, SPACE.replace("space:", "metric: eval/success, space:"))  # by now something was judged by it
    assert "is a search with another metric" in sweep.run("--slots", 1)[1]


def test_a_run_whose_trial_is_over_is_not_requeued(tmp_path):
    sweep = searching(tmp_path, "0", {0: "fails"}, 1)
    assert sweep.run("--retries", 0)[0] == 10
    run = tmp_path / "runs" / "s" / "trial-0000" / "CartPole-v1" / "0"
    done = sweep.tell("requeue", run)
    assert done.returncode == 2
    assert done.stdout == f"{run}: its trial is over; a larger --trials asks for more\n"
    assert not (run / "launch" / "requeue").exists()


def test_a_run_whose_trial_is_open_is_requeued(tmp_path):
    sweep = searching(tmp_path, "0", {0: "waits once"}, 1)
    launcher = sweep.begin()
    run = tmp_path / "runs" / "s" / "trial-0000" / "CartPole-v1" / "0"
    wait_until((run / "status.json").exists)
    sweep.verb("stop", run)
    launcher.communicate(timeout=60)
    assert "starts with: roboloop sweep" in sweep.verb("requeue", run)
    assert sweep.run()[0] == 0
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"]


def test_settings_that_contradict_each_other_are_a_failed_trial(tmp_path):
    # both ends are possible: 8 envs x 128 steps split into 4 minibatches and into 8, but not into 5, 6 or 7
    text = "{base: cartpole, space: {algo.minibatches: {low: 4, high: 8}}}"
    sweep = searching(tmp_path, "0", {}, 6)
    written(tmp_path, text)
    _, out = sweep.run()
    states = [trial.state.name for trial in trials(tmp_path)]
    tried = [trial.params["algo.minibatches"] for trial in trials(tmp_path)]
    assert states == ["COMPLETE" if number in (4, 8) else "FAIL" for number in tried], out
    assert "FAIL" in states
    assert len(sweep.started()) == states.count("COMPLETE")
    assert sweep.run()[1].count("started") == 0


def test_what_is_tried_follows_from_the_past_and_not_from_interruptions(wanted):
    def asked(number: int) -> dict:
        study = optuna.create_study(sampler=sampler(wanted, number))
        return study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}).params

    assert asked(3) == asked(3)
    assert asked(3) != asked(4)


def test_another_question_is_another_search(wanted, tmp_path):
    wanted = replace(wanted, base=replace(wanted.base, runs_dir=str(tmp_path / "runs")))
    (wanted.directory / ".sweep").mkdir(parents=True)
    open_study(wanted)
    open_study(wanted)
    with pytest.raises(ConfigError, match="is a search with another goal: give another --name"):
        open_study(replace(wanted, goal="min"))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("{algo.gama: {low: 0.1, high: 0.2}}", "did you mean 'algo.gamma'"),
        ("{algo.gamma: {low: 0.1, hgih: 0.2}}", "must be {low: A, high: B}"),
        ("{algo.gamma: {low: 0.1, high: 0.2, stp: 0.1}}", "unknown key 'stp'; did you mean 'step'"),
        ("{algo.gamma: {low: 0.3, high: 0.2}}", "low 0.3 is not below high 0.2"),
        ("{algo.gamma: {low: 0.5, high: 1.5}}", "gamma"),
        ("{algo.epochs: {low: 1.5, high: 3}}", "must be int, not 1.5"),
        ("{algo.name: {low: ppo, high: sac}}", "it is no number"),
        ("{algo.gamma: {low: 0.0, high: 0.5, log: true}}", "space of 'algo.gamma'"),
        ("{algo.gamma: {low: 0.1, high: 0.5, log: maybe}}", "log must be true or false, not 'maybe'"),
        (
            "{algo.epochs: {low: 1, high: 9, step: .inf}}",
            "'algo.epochs': step must be a whole number from 1 to 8, not inf",
        ),
        ("{algo.epochs: {low: 1, high: 9, step: .nan}}", "not nan"),
        ("{algo.epochs: {low: 1, high: 9, step: 1.5}}", "not 1.5"),
        ("{algo.epochs: {low: 1, high: 9, step: 0}}", "not 0"),
        (f"{{algo.epochs: {{low: 1, high: 9, step: {10**400}}}}}", "whole number from 1 to 8, not 1000"),
        ("{algo.gamma: {low: 0.1, high: 0.6, step: .inf}}", "step must be a number from 5.55e-17 to 0.5, not inf"),
        ("{algo.gamma: {low: 0.1, high: 0.6, step: .nan}}", "not nan"),
        ("{algo.gamma: {low: 0.1, high: 0.6, step: 1.0e-300}}", "not 1e-300"),
        ("{algo.gamma: {low: 0.1, high: 0.6, step: big}}", "not 'big'"),
        ("{algo.gamma: {low: .nan, high: 0.6}}", "gamma"),
        ("{algo.max_grad_norm: {low: 0.1, high: .inf}}", "'algo.max_grad_norm': high must be within"),
        ("{target: {low: 0.1, high: .nan}}", "'target': high must be within"),
        (f"{{algo.max_grad_norm: {{low: 1, high: {10**400}}}}}", "'algo.max_grad_norm': high must be within"),
        (f"{{algo.epochs: {{low: 1, high: {10**400}}}}}", "'algo.epochs': high must be within"),
        ("{seed: {low: 1, high: 9}}", "'seed' is no axis: use seeds"),
        ("{algo.gama: {nu: {low: 0.1, high: 0.2}}}", "unknown config key 'algo.gama'"),
        ("{}", "a search needs 'space'"),
    ],
)
def test_a_range_that_cannot_be_is_refused(tmp_path, space, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_space(read_sweep(written(tmp_path, f"{{base: cartpole, space: {space}}}")), 3)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("axes: {algo.gamma: [0.9, 0.99]}", "'algo.gamma' is no axis: it is given twice"),
        ("axes: {seed: [0, 1]}", "'seed' is no axis: use seeds"),
        ("seeds: [0, 0]", "a seed is given twice"),
        ("name: ../x", "plain word"),
        ("axes: {algo.epochs: [4, 0, 5]}", "epochs must be at least 1"),
        ("axes: {algo.epochs: [4, 5], algo.minibatches: [4, 0, 8]}", "minibatches"),
    ],
)
def test_what_no_sweep_may_ask_for_no_search_may(tmp_path, keys, message):
    text = f"{{base: cartpole, space: {{algo.gamma: {{low: 0.5, high: 0.9}}}}, {keys}}}"
    with pytest.raises(ConfigError, match=message):
        check_space(read_sweep(written(tmp_path, text)), 3)


def test_a_range_may_be_in_a_section_and_have_steps(tmp_path):
    space = "{algo: {gamma: {low: 0.1, high: 0.3, step: 0.2}, epochs: {low: 2, high: 8, step: 2.0}}}"
    wanted = read_sweep(written(tmp_path, f"{{base: cartpole, space: {space}}}"))
    check_space(wanted, 3)
    assert {key: (d.low, d.high, d.step) for key, d in distributions(wanted).items()} == {
        "algo.gamma": (0.1, 0.3, 0.2),
        "algo.epochs": (2, 8, 2),
    }


def test_the_example_is_a_search():
    check_space(read_sweep(Path(__file__).parents[2] / "docs" / "examples" / "cartpole-search.yaml"), 40)


def test_a_search_needs_trials_and_evaluations(wanted: Wanted):
    with pytest.raises(ConfigError, match="--trials"):
        check_space(wanted, None)
    base = replace(wanted.base, eval=replace(wanted.base.eval, episodes=0))
    with pytest.raises(ConfigError, match="looks at evaluations"):
        check_space(replace(wanted, base=base), 1)


def test_a_curve_is_success_then_return_or_a_metric_by_name(tmp_path):
    rows = [
        {"step": 1, "eval/success": 0.5, "eval/return": 2.0},
        {"step": 1, "train/x": 7.0},
        {"step": 2, "train/x": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert curve(tmp_path, "score") == [(1, 0.5 + 2e-9)]
    assert curve(tmp_path, "train/x") == [(1, 7.0)]
