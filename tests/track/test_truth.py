"""The section about simulators: how well they predict, and what was set in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from roboloop.track.report.blocks import Table
from roboloop.track.report.document import sections
from roboloop.track.summary import Prediction, RunSummary, read_summary
from roboloop.track.summary_file import load, save
from tests.run.fake_runs import write_run


def tables(runs: list[RunSummary]) -> list[Table]:
    (section,) = sections(runs, only=["truth"])
    return [block for block in section.blocks if isinstance(block, Table)]


def test_errors_of_simulators_are_means_over_seeds_and_parameters_stand_for_each(tmp_path: Path) -> None:
    def made(seed: int, of_source: float, foot: float) -> RunSummary:
        predictions = (
            Prediction("source", "hopper/power", {"1": of_source, "25": None}),
            Prediction("simgan", "hopper/power", {"1": of_source / 4, "25": None}, {"foot: motor": foot}),
        )
        return replace(read_summary(write_run(tmp_path, "direct", seed=seed)), predictions=predictions)

    runs = load(save([made(1, 0.6, 0.52), made(0, 0.4, 0.5)], tmp_path / "s.json"))
    errors, parameters = tables(runs)
    assert errors.header == ("simulator", "seeds", "1 step", "25 steps")
    assert errors.rows == (("source", "2", "0.5", "–"), ("simgan", "2", "0.125", "–"))
    assert (parameters.header, parameters.rows) == (("parameter", "simgan"), (("foot: motor", "0.5, 0.52"),))
    assert "hopper/power" in errors.caption


def test_each_target_has_tables_of_its_own(tmp_path: Path) -> None:
    run = read_summary(write_run(tmp_path))
    predictions = tuple(Prediction("source", target, {"1": 1.0}) for target in ("a", "b"))
    assert [table.rows for table in tables([replace(run, predictions=predictions)])] == [(("source", "1", "1"),)] * 2
