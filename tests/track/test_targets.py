"""Evaluations at several targets as one picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from roboloop.core.errors import DataError
from roboloop.track.targets import plot_targets, reached


def evaluated(root: Path, experiment: str, seed: int, evaluations: dict[tuple[int, float | None], list[float]]) -> Path:
    """Make a run with the returns of evaluations by checkpoint and target."""
    run = root / experiment / "task" / str(seed)
    (run / "eval").mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    for (step, target), returns in evaluations.items():
        head = {"checkpoint_step": step} | ({} if target is None else {"target": target})
        rows = [head, *({"episode": i, "return": r} for i, r in enumerate(returns))]
        (run / "eval" / f"{step}-{target}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


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
    with pytest.raises(DataError, match="no evaluation with a target"):
        plot_targets([run], tmp_path / "t.png")
