from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from roboloop.cli import main
from roboloop.core.errors import ConfigError, DataError
from roboloop.track.curves import Traced, described, summarise, traced
from roboloop.track.plots import made_groups, plot_runs
from tests.run.fake_runs import write_run


def make_run(
    root: Path, experiment: str, seed: int, source: str = "eval", rows: int = 30, timed: bool = True
) -> Traced:
    return traced(make_directory(root, experiment, seed, source, rows, timed))


def make_directory(
    root: Path, experiment: str, seed: int, source: str = "eval", rows: int = 30, timed: bool = True
) -> Path:
    run = root / experiment / "reach-v3" / str(seed)
    run.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    steps = np.linspace(0, 100_000, rows).astype(int)
    success = np.clip(steps / 80_000 + 0.1 * rng.normal(size=rows), 0, 1)
    metrics = [
        {"step": int(s), f"{source}/success": float(p), f"{source}/return": float(4000 * p)}
        for s, p in zip(steps, success, strict=True)
    ]
    timing = [{"step": int(s), "wall_s": float(s / (80 + seed))} for s in steps[::3]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    if timed:
        (run / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timing))
    return run


def is_sane_png(path: Path) -> bool:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    return 800 <= pixels.shape[1] <= 1600 and pixels.std() > 5 and 10_000 < path.stat().st_size < 200_000


def test_three_seeds_of_two_groups_make_one_small_picture(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, experiment, seed) for experiment in ("sac", "ppo") for seed in range(3)]
    out = plot_runs(runs, tmp_path / "plots" / "curves.png")
    assert is_sane_png(out)
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]


def test_what_was_not_evaluated_in_training_is_drawn_as_evaluated_afterwards(tmp_path: Path) -> None:
    run = make_directory(tmp_path, "sac", 0, "train")
    (run / "eval.jsonl").write_text('{"step": 10, "eval/success": 0.5, "eval/return": 2.0}\n')
    (group,) = made_groups([traced(run)])
    assert (group.source, group.curves["success"][0].value.tolist()) == ("eval", [0.5])


def test_training_goes_before_what_was_evaluated_afterwards(tmp_path: Path) -> None:
    run = make_directory(tmp_path, "sac", 0, rows=30)
    (run / "eval.jsonl").write_text('{"step": 10, "eval/success": 0.5}\n')
    (group,) = made_groups([traced(run)])
    assert len(group.curves["success"][0].value) == 30


def test_many_noisy_groups_without_eval_or_timing_still_fit(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"e{i}", seed, "train", 1000, timed=False) for i in range(10) for seed in range(2)]
    assert is_sane_png(plot_runs(runs, tmp_path / "curves.png"))


def test_what_matplotlib_was_told_by_a_file_changes_no_picture(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "sac", seed) for seed in range(2)]
    plot_runs(runs, tmp_path / "plain.png")
    with matplotlib.rc_context({"text.usetex": True, "text.latex.preamble": r"\input{/etc/passwd}", "savefig.dpi": 3}):
        plot_runs(runs, tmp_path / "told.png")
    assert (tmp_path / "told.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_a_run_with_one_point_can_be_drawn(tmp_path: Path) -> None:
    assert is_sane_png(plot_runs([make_run(tmp_path, "sac", 0, rows=1)], tmp_path / "curves.png"))


@pytest.mark.parametrize(
    ("seeds", "source", "words"),
    [
        (5, "eval", "SAC (IQM of 5 seeds, 95 % bootstrap interval)"),
        (3, "eval", "SAC (mean of 3 seeds, min to max)"),
        (1, "train", "SAC (1 seed; training episodes)"),
    ],
)
def test_the_legend_says_what_line_and_band_are(tmp_path: Path, seeds: int, source: str, words: str) -> None:
    runs = [make_run(tmp_path, "SAC", seed, source) for seed in range(seeds)]
    (group,) = made_groups(runs, "experiment")
    assert described(group) == words


def test_wall_time_is_joined_by_step(tmp_path: Path) -> None:
    (group,) = made_groups([make_run(tmp_path, "sac", 0)], "experiment")
    (curve,) = group.curves["success"]
    before_last_reading = curve.step < 90_000
    assert curve.wall_s[before_last_reading] == pytest.approx(curve.step[before_last_reading] / 80)


def test_a_line_goes_only_as_far_as_all_its_seeds() -> None:
    xs = [np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0])]
    summary = summarise(xs, [np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0])])
    assert summary is not None
    assert summary.x.tolist() == [0, 10]
    assert summary.centre.tolist() == [1, 2]
    assert (summary.low.tolist(), summary.high.tolist()) == ([0, 1], [2, 3])


def test_seeds_that_were_evaluated_at_different_steps_are_a_line_nevertheless() -> None:
    summary = summarise([np.array([50.0]), np.array([60.0, 70.0]), np.array([65.0, 75.0])],
                        [np.array([1.0]), np.array([2.0, 4.0]), np.array([0.0, 4.0])])  # fmt: skip
    assert summary is not None
    assert summary.x.tolist() == [50, 60, 65, 70, 75]
    assert summary.centre.tolist() == [1, 2, 1.5, 3, 4]
    assert (summary.low.tolist(), summary.high.tolist()) == ([1, 2, 0, 2, 4], [1, 2, 3, 4, 4])


def test_nothing_to_plot_and_unknown_groups_are_said_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path, "sac", 0, source="other")
    with pytest.raises(DataError, match="nothing to plot"):
        plot_runs([run], tmp_path / "x.png")
    with pytest.raises(DataError, match="no runs given"):
        plot_runs([], tmp_path / "x.png")
    with pytest.raises(ConfigError, match="did you mean 'task'"):
        plot_runs([run], tmp_path / "x.png", group_by="tasks")


def test_a_summary_is_drawn_as_the_runs_that_it_was_made_of(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed in (0, 1):
        write_run(runs, "sac", seed=seed)
    assert main(["report", str(runs), "--save", str(tmp_path / "s.json")]) == 0
    for source, out in ((runs, "runs.png"), (tmp_path / "s.json", "summary.png")):
        assert main(["plot", str(source), "--as", "sac", "SAC", "--out", str(tmp_path / out)]) == 0
    assert (tmp_path / "runs.png").read_bytes() == (tmp_path / "summary.png").read_bytes()


@pytest.mark.parametrize("args", [["--as", "sad", "SAC"], ["--as", "sac"], ["--targets", "--as", "sad", "SAC"]])
def test_names_that_cannot_be_given_are_one_line_and_exit_code_2(tmp_path: Path, capsys, args: list[str]) -> None:
    write_run(tmp_path, "sac")
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "c.png"), *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sac" in line or "--as" in line
    assert not (tmp_path / "c.png").exists()


def test_what_no_run_logged_takes_no_room(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, "sac", 0)
    both = plot_runs([traced(directory)], tmp_path / "both.png")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    (directory / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": row["step"], "eval/return": row["eval/return"]}) + "\n" for row in rows)
    )
    alone = plot_runs([traced(directory)], tmp_path / "alone.png")
    with Image.open(both) as tall, Image.open(alone) as low:
        assert 0.4 < low.height / tall.height < 0.7
    assert is_sane_png(alone)
