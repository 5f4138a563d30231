from __future__ import annotations

import json
from pathlib import Path

import pytest

from roboloop.core.errors import DataError
from roboloop.track.report import page
from roboloop.track.report.document import sections
from roboloop.track.summary import flatten, load, read_summary, save
from tests.run.fake_runs import lines, write_eval, write_run


def test_a_summary_holds_curves_evaluations_times_and_origin(tmp_path: Path) -> None:
    run = write_run(tmp_path, seed=3, success={10: 0.25, 20: 0.75})
    write_eval(run, 20, [1, 1, 0, 1])
    made = read_summary(run)
    assert (made.name, made.group, made.state, made.step) == ("sac/reach/3", "sac/reach", "done", 20)
    assert made.curves["eval/success"].step.tolist() == [10, 20]
    assert made.curves["eval/success"].value.tolist() == [0.25, 0.75]
    assert made.curves["eval/success"].wall_s.tolist() == [4, 8]
    (evaluation,) = made.evaluations
    assert (evaluation.step, evaluation.whole.episodes, evaluation.whole.successes) == (20, 4, 3)
    assert evaluation.whole.mean_return == 7.5
    assert made.seconds == {"wall": 8, "collect": 2, "update": 6, "eval": 0}
    assert made.config == {"experiment": "sac", "steps": 20, "algo.name": "sac", "algo.gamma": 0.99}
    assert made.origin["versions"] == {"numpy": "2.0"}
    assert not made.notes


def test_a_summary_that_is_written_and_read_is_the_same(tmp_path: Path) -> None:
    runs = []
    for seed in range(2):
        tasks = {"push": {10: 0.0, 20: 0.5}, "pull": {10: 1.0, 20: 1.0}}
        run = write_run(tmp_path, seed=seed, tasks=tasks, config={"update": {"per_step": float("inf")}, "x": seed})
        write_eval(run, 20, [1, 0, 1, 1], tasks=("push", "pull"))
        write_eval(run, 10, [None, None], target=3.0, name="aimed")
        runs.append(read_summary(run))
    file = save(runs, tmp_path / "deep" / "s.json")
    assert len(json.loads(file.read_text())["runs"]) == 2
    again = load(file)
    assert save(again, tmp_path / "again.json").read_bytes() == file.read_bytes()
    assert again[1].evaluations == runs[1].evaluations
    assert again[1].config == runs[1].config
    assert again[1].config["update.per_step"] == "inf"
    assert again[1].evaluations[1].tasks["push"].successes == 2
    assert again[1].evaluations[0].whole.successes is None


def test_a_summary_names_no_folder_of_the_machine_it_was_made_on(tmp_path: Path) -> None:
    run = write_run(tmp_path, config={"dataset": "/home/somebody/data/push", "experts": ["/home/somebody/e"]})
    write_eval(run, 20, [1], schedule="/home/somebody/list")
    (run / "videos").mkdir()
    (run / "videos" / "evaluation.mp4").write_bytes(b"x")
    text = save([read_summary(run)], tmp_path / "s.json").read_text()
    assert "somebody" not in text
    assert str(tmp_path) not in text
    assert "…/mine.yaml" in text
    assert "…/push" in text
    assert "evaluation.mp4" in text


def test_tens_of_thousands_of_points_become_a_hundred(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "metrics.jsonl").write_text(lines([{"step": i, "train/return": float(i)} for i in range(30_000)]))
    made = read_summary(run)
    curve = made.curves["train/return"]
    assert len(curve.step) == 100
    assert curve.value.mean() == pytest.approx(14_999.5)
    assert save([made], tmp_path / "s.json").stat().st_size < 6_000


def test_an_unfinished_evaluation_says_so_and_a_torn_last_line_is_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    path = write_eval(run, 20, [1, 1, 1])
    path.write_text(path.read_text()[:-9])
    (evaluation,) = read_summary(run).evaluations
    assert evaluation.whole.episodes == 2
    assert not evaluation.is_whole


HEADER = '{"plan": {"episodes": 1, "seed": 0, "split": "test"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1}\nrubbish\n{"step": 2}\n',
        '{"plan": 3}\n{"return": 1}\n',
        '{}\n{"a": 1}\n',
        HEADER + '}\n{"return": null, "success": 1}\n',
        HEADER + ', "protocol": 3}\n{"return": 1, "success": 1}\n',
        HEADER + ', "env": 3}\n{"return": 1, "success": 1}\n',
    ],
)
def test_a_damaged_evaluation_is_noted_and_the_run_is_kept(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path)
    write_eval(run, 10, [1])
    (run / "eval" / "bad.jsonl").write_text(text)
    made = read_summary(run)
    assert len(made.evaluations) == 1
    (note,) = made.notes
    assert "bad.jsonl" in note
    assert "\n" not in note


def test_a_run_without_its_origin_is_kept_and_one_without_config_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "meta.json").unlink()
    assert "meta.json" in read_summary(run).notes[0]
    (run / "config.yaml").unlink()
    with pytest.raises(DataError, match=r"config\.yaml"):
        read_summary(run)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a summary"),
        ('{"format": "other"}', "not a summary"),
        ('{"format": "roboloop-summary", "version": 99}', "version 99"),
        ('{"format": "roboloop-summary", "version": 1, "config": {}, "runs": [{"x": 1}]}', "damaged"),
        ('{"format": "roboloop-summary", "version": 1, "config": {}, "runs": [3]}', "damaged"),
        ("{", "damaged"),
    ],
)
def test_a_foreign_or_damaged_summary_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nested_settings_have_the_names_of_flags() -> None:
    assert flatten({"a": 1, "b": {"c": {"d": [2]}, "e": None}}) == {"a": 1, "b.c.d": [2], "b.e": None}


def test_an_evaluation_elsewhere_says_what_is_other_there(tmp_path: Path) -> None:
    run = write_run(tmp_path, config={"env": {"id": "toy/a", "legged": {"mass": 1.0}}})
    write_eval(run, 20, [1], name="here", env={"id": "toy/a", "legged": {"mass": 1.0}, "later": 3})
    write_eval(run, 20, [1], name="there", env={"id": "toy/b", "legged": {"mass": 2.0}})
    here, there = read_summary(run).evaluations
    assert here.special == {}
    assert there.special == {"env": {"env.id": "toy/b", "env.legged.mass": 2.0}}


def test_an_origin_that_is_nonsense_and_a_name_that_is_no_text_do_no_harm(tmp_path: Path) -> None:
    run = write_run(tmp_path, "odd-\udcff")
    (run / "meta.json").write_text('{"versions": 3, "command": {}, "git": [], "created_unix_s": "now", "cpus": 2}')
    made = read_summary(run)
    assert made.origin == {"cpus": 2}
    file = save([made], tmp_path / "s.json")
    assert load(file)[0].experiment == "odd-\udcff"
    text = page.document("t", sections([made]), tmp_path / "r.html")
    assert b"odd-" in text.encode(errors="backslashreplace")
