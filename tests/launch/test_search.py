"""A search makes up its runs as it goes, ends bad ones early, and goes on after being killed."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.launch.search import check_space, curve, open_study, sampler
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


def trials(tmp_path: Path) -> list:
    journal = str(tmp_path / "runs" / "s" / ".sweep" / "optuna.jsonl")
    backend = optuna.storages.journal.JournalFileBackend(journal)
    return optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend)).trials


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
        ("{}", "a search needs 'space'"),
    ],
)
def test_a_range_that_cannot_be_is_refused(tmp_path, space, message):
    with pytest.raises(ConfigError, match=message):
        check_space(read_sweep(written(tmp_path, f"{{base: cartpole, space: {space}}}")), 3)


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
