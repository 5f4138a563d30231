"""Evaluations at several targets as one picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from roboloop.core.errors import DataError
from roboloop.track.summary import RunSummary, read_summary
from roboloop.track.summary_file import load, save
from roboloop.track.targets import plot_targets, reached
from tests.run.fake_runs import write_eval, write_run


def evaluated(
    root: Path, experiment: str, seed: int, evaluations: dict[tuple[int, float | None], list[float]]
) -> RunSummary:
    """Make a run with the returns of evaluations by checkpoint and target."""
    run = write_run(root, experiment, seed=seed)
    for (step, target), returns in evaluations.items():
        about = {} if target is None else {"target": target}
        # a made-up evaluation of success s has the return 10 s
        write_eval(run, step, [r / 10 for r in returns], name=f"{step}-{target}", **about)
    return read_summary(run)


def test_the_mean_of_each_run_counts_once_for_each_target(tmp_path: Path) -> None:
    first = evaluated(tmp_path, "dt", 0, {(5, 10.0): [8.0, 10.0], (5, 20.0): [16.0]})
    second = evaluated(tmp_path, "dt", 1, {(5, 20.0): [20.0, 22.0], (5, None): [7.0]})
    found = reached("dt", [first, second])
    assert {target: means.tolist() for target, means in found.by_target.items()} == {10.0: [9.0], 20.0: [16.0, 21.0]}
    assert found.unasked.tolist() == [7.0]


def test_of_several_checkpoints_the_last_one_counts(tmp_path: Path) -> None:
    run = evaluated(tmp_path, "dt", 0, {(100, 10.0): [1.0], (5, 10.0): [9.0]})
    assert reached("dt", [run]).by_target[10.0].tolist() == [1.0]


def test_transformers_and_clones_share_a_picture(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, "dt", seed, {(5, t): [t + seed] for t in (1.0, 2.0, 3.0)}) for seed in range(3)]
    runs.append(evaluated(tmp_path, "bc", 0, {(5, None): [2.0]}))
    with Image.open(plot_targets(runs, tmp_path / "t.png")) as picture:
        assert picture.size[0] > 600


def test_runs_without_targets_are_one_clear_line(tmp_path: Path) -> None:
    run = evaluated(tmp_path, "bc", 0, {(5, None): [2.0]})
    with pytest.raises(DataError, match="no held-out evaluation with a target"):
        plot_targets([run], tmp_path / "t.png")


def test_evaluations_elsewhere_and_those_that_were_stopped_do_not_count(tmp_path: Path) -> None:
    path = write_run(tmp_path, "dt", config={"env": {"id": "a"}})
    write_eval(path, 5, [0.5])
    write_eval(path, 9, [0.1], name="elsewhere", env={"id": "b"})
    write_eval(path, 9, [0.1], name="stopped", plan={"episodes": 7, "seed": 0, "split": "test"})
    write_eval(path, 5, [0.4], name="target", target=4.0)
    write_eval(path, 9, [0.1], name="target-elsewhere", target=4.0, env={"id": "b"})
    found = reached("dt", load(save([read_summary(path)], tmp_path / "s.json")))
    assert found.unasked.tolist() == [5.0]
    assert {target: means.tolist() for target, means in found.by_target.items()} == {4.0: [4.0]}


def test_a_target_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path, "dt")
    write_eval(path, 5, [0.5], target=[1, 2])
    assert not reached("dt", [read_summary(path)]).by_target
