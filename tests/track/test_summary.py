from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roboloop.core.config import flatten
from roboloop.core.errors import DataError
from roboloop.core.sealed import Chain
from roboloop.track.curves import MOST_POINTS
from roboloop.track.report import markdown, page
from roboloop.track.report.document import sections
from roboloop.track.report.facts import videos
from roboloop.track.summary import Prediction, read_summary, seconds_at
from roboloop.track.summary_file import load, save
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


def whole_summary(root: Path) -> Path:
    """Write a summary that has everything a summary can have."""
    path = write_run(root, tasks={"a": {10: 0.5, 20: 1.0}, "b": {10: 0.0, 20: 1.0}})
    write_eval(path, 20, [1, 0, 1, 0], tasks=("a", "b"))
    write_eval(path, 10, [1, 0], name="elsewhere", env={"id": "other"})
    write_eval(path, 10, [1, 0], name="asked", target=3.0)
    facts = {"env_id": "e", "episodes": 3, "steps": 9, "bytes": 100, "success": 0.5, "return_quantiles": [0, 1, 2]}
    made = replace(
        read_summary(path, lambda _: facts),
        datasets={"dataset": facts},
        predictions=(Prediction("source", "target", {"1": 0.5, "25": None}, {"foot": 0.5}),),
        videos=("a.mp4",),
        notes=("said",),
    )
    other = replace(made, experiment="ppo")
    return save([made, other], root / "s.json")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a JSON document."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


def with_other(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    changed = document.copy()
    changed[at[0]] = with_other(document[at[0]], at[1:], value)
    return changed


def test_a_summary_with_anything_else_anywhere_is_refused_in_one_line_or_shown(tmp_path: Path) -> None:
    path = whole_summary(tmp_path)
    whole = json.loads(path.read_text())
    ways = [at for at in places(whole) if at[:2] != ("runs", 1)]
    refused: list[str] = []
    for at in ways:
        for value in (None, "x", -1, 1e300, True, [], {}, [5], {"x": 5}):
            path.write_text(json.dumps(with_other(whole, at, value)))
            try:
                runs = load(path)
            except DataError as error:
                refused.append(str(error))
                continue
            made = sections(runs)
            assert page.document("t", made, tmp_path / "r.html")
            assert markdown.document("t", made)
    assert len(refused) > 1000
    assert not [line for line in refused if "\n" in line]


@pytest.mark.parametrize(
    "text",
    ["x: 2026-99-99", "x: !!int abc", "a: &a {b: *a}", "? [1, 2]\n: 3", "x: " + "[" * 5000],
    ids=[
        "a date that is none",
        "a number that is none",
        "a mapping in itself",
        "a list as a key",
        "nested without end",
    ],
)
def test_a_config_that_yaml_stumbles_over_is_one_line(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path)
    (run / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml") as caught:
        read_summary(run)
    assert "\n" not in str(caught.value)


def test_what_yaml_knows_and_json_does_not_is_shown_as_text(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "config.yaml").write_text("x: 2026-01-01\ny: !!set {a}\nexperiment: sac\n")
    (made,) = load(save([read_summary(run)], tmp_path / "s.json"))
    assert made.config["x"] == "2026-01-01"


def test_what_links_out_of_a_run_is_not_shown(tmp_path: Path) -> None:
    run, secret = write_run(tmp_path), tmp_path / "secret"
    secret.write_text("k: hidden\n")
    for name in ("videos/a.mp4", "eval/a.jsonl", "meta.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
    made = read_summary(run)
    assert not made.videos
    assert not made.origin
    assert not made.evaluations
    assert sum("link out of the run" in note for note in made.notes) == 3
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(secret)
    with pytest.raises(DataError, match="link out of the run"):
        read_summary(run)


@pytest.mark.parametrize("about", [{"checkpoint_step": math.inf}, {"checkpoint_step": "x"}, {"plan": 3}])
def test_an_evaluation_with_an_odd_header_is_noted(tmp_path: Path, about: dict[str, Any]) -> None:
    run = write_run(tmp_path)
    write_eval(run, 20, [1], **about)
    made = read_summary(run)
    assert not made.evaluations
    assert "not an evaluation" in made.notes[0]


def test_of_many_evaluations_the_last_one_is_kept_as_it_was(tmp_path: Path) -> None:
    success = {step: float(step >= 500) * (step % 2) for step in range(1, 1000)}
    curve = read_summary(write_run(tmp_path, success=success)).curves["eval/success"]
    assert len(curve.step) <= MOST_POINTS
    assert (curve.step[-1], curve.value[-1]) == (999, 1.0)
    assert set(curve.value.tolist()) <= {0.0, 1.0}  # no means of several


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
@pytest.mark.parametrize("left", ["cut at a line", "no line", "nothing", "gone"])
def test_a_log_that_has_lost_rows_since_its_checkpoint_is_noted(tmp_path: Path, name: str, left: str) -> None:
    run = write_run(tmp_path)
    log = run / name
    data = log.read_bytes()
    folder = run / "checkpoints" / "step-000000000100"
    folder.mkdir(parents=True)
    body = {"log_offsets": {other: (run / other).stat().st_size for other in ("metrics.jsonl", "timing.jsonl")}}
    (folder / "manifest.json").write_text(json.dumps({"body": body}))
    assert not any("rows are missing" in note for note in read_summary(run).notes)
    log.unlink()
    if left != "gone":
        parts = {"cut at a line": data[: data[:-1].rfind(b"\n") + 1], "no line": b"[" * (len(data) + 9), "nothing": b""}
        log.write_bytes(parts[left])
    (note,) = [note for note in read_summary(run).notes if "rows are missing" in note]
    assert name in note


def test_a_log_of_another_run_is_noted(tmp_path: Path) -> None:
    run, chain = write_run(tmp_path), Chain()
    sealed = b"".join(chain.seal(line) + b"\n" for line in (run / "metrics.jsonl").read_bytes().splitlines())
    (run / "metrics.jsonl").write_bytes(sealed)
    folder = run / "checkpoints" / "step-000000000100"
    folder.mkdir(parents=True)
    for value, count in ((chain.value, 0), (chain.value ^ 1 if chain.value else 1, 1)):
        body = {"log_offsets": {"metrics.jsonl": len(sealed)}, "log_checksums": {"metrics.jsonl": value}}
        (folder / "manifest.json").write_text(json.dumps({"body": body}))
        assert sum("other rows" in note for note in read_summary(run).notes) == count


def test_an_evaluation_of_other_weights_than_the_runs_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_eval(run, 20, [1.0, 1.0], weights="a" * 64)
    assert read_summary(run).evaluations
    folder = run / "checkpoints" / "step-000000000020"
    folder.mkdir(parents=True)
    for digest, count in (("a", 1), ("b", 0)):
        files = {"state.safetensors": digest * 64}
        (folder / "manifest.json").write_text(json.dumps({"body": {"files": files}}))
        made = read_summary(run)
        assert len(made.evaluations) == count
    assert "not of this run's checkpoint" in made.notes[-1]


def test_a_summary_of_a_stranger_puts_no_film_of_ours_into_a_report(tmp_path: Path) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"secret")
    (made,) = load(save([read_summary(write_run(tmp_path))], tmp_path / "s.json"))
    text = (tmp_path / "s.json").read_text().replace('"step":', f'"videos":[{json.dumps(str(secret))}],"step":', 1)
    (tmp_path / "s.json").write_text(text)
    (odd,) = load(tmp_path / "s.json")
    assert odd.videos == ("secret.mp4",)
    assert not videos({"a": [odd, made]}).blocks


def test_seconds_that_no_run_can_have_taken_are_left_out() -> None:
    row = {"update_s": 1.26, "sample_s": 10**400, "save_s": math.inf, "eval_s": math.nan, "steps_per_s": 3}
    assert seconds_at(row) == {"update": 1.3}
