"""The verb on real runs, made by training for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from roboloop.cli import main
from tests.run.fake_runs import write_run
from tests.run.helpers import train


def test_real_runs_make_one_page_with_curves_data_time_and_origin(tiny, tmp_path, capsys) -> None:
    short = {"steps": 160, "eval": {"every_steps": 80, "episodes": 1}}
    for seed in (0, 1):
        train(tiny(seed=seed, record={"keep": "all", "budget_mb": 50, "min_free_mb": 0}, **short))
    train(tiny(experiment="other", algo={"gamma": 0.5}, **short))
    out, text, saved = (tmp_path / name for name in ("r.html", "r.md", "s.json"))
    args = ["report", str(tmp_path / "runs"), "--out", str(out), "--md", str(text), "--save", str(saved)]
    assert main([*args, "--title", "Tiny"]) == 0
    page, words = out.read_text(), text.read_text()
    for heading in ("Results", "Curves", "Runs", "Progress", "Comparison", "Settings", "Datasets", "Time", "Origin"):
        assert f"<h2>{heading}</h2>" in page
    assert "| algo.gamma | 0.5 | 0.99 |" in words
    assert "| tiny/Pendulum-v1/0/dataset | gym/Pendulum-v1 | 4 | 160 |" in words
    assert saved.stat().st_size < 20_000
    again = tmp_path / "again.md"
    assert main(["report", str(saved), "--md", str(again), "--title", "Tiny"]) == 0
    assert again.read_text() == words
    assert not capsys.readouterr().err


def test_damaged_runs_are_named_in_one_line_each_and_the_others_reported(tmp_path: Path, capsys) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "good")
    (write_run(runs, "middle") / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    torn = write_run(runs, "torn") / "metrics.jsonl"
    torn.write_text(torn.read_text() + '{"step": 3')
    (write_run(runs, "stateless") / "status.json").unlink()
    (write_run(runs, "unset") / "config.yaml").unlink()
    out = tmp_path / "r.html"
    assert main(["report", str(runs), str(tmp_path / "nowhere"), "--out", str(out)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    for name in ("middle", "stateless", "unset", "nowhere"):
        assert sum(name in line for line in said) == 1
    page = out.read_text()
    assert "good/reach" in page
    assert "torn/reach" in page
    assert "line 2 is not JSON" in page


@pytest.mark.parametrize("args", [[], ["nowhere"], ["--only", "finals"], ["--refresh", "nowhere.md"]])
def test_no_runs_or_nonsense_is_one_line_and_exit_code_2(tmp_path: Path, capsys, monkeypatch, args: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *args]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_one_line_that_names_it_and_nothing_is_left(tmp_path: Path, capsys) -> None:
    run, folder, file = write_run(tmp_path / "runs"), tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    for verb, flag in (("report", "--out"), ("report", "--md"), ("report", "--save"), ("plot", "--out")):
        for out in (folder, file / "x.html"):
            assert main([verb, str(run), flag, str(out)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"{out} cannot be written" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_mark_with_an_open_quote_is_one_line(tmp_path: Path, capsys) -> None:
    text = tmp_path / "t.md"
    text.write_text("<!-- roboloop report data/a.json --only 'final -->\n<!-- end of report -->\n")
    assert main(["report", "--refresh", str(text)]) == 2
    assert "No closing quotation" in capsys.readouterr().err


def test_a_run_that_is_given_twice_counts_once(tmp_path: Path, capsys) -> None:
    run = write_run(tmp_path / "runs")
    saved = tmp_path / "s.json"
    assert main(["report", str(run), "--save", str(saved)]) == 0
    out = tmp_path / "r.md"
    assert main(["report", str(run), str(run.parent), "--md", str(out), "--only", "final"]) == 0
    assert "| sac/reach | 1 |" in out.read_text()
    assert main(["report", str(saved), str(saved), "--md", str(out), "--only", "final"]) == 0
    assert "| sac/reach | 1 |" in out.read_text()


@pytest.mark.parametrize("unix_s", ["1e300", "NaN", "-1e18"])
def test_an_origin_of_no_time_is_shown_without_it(tmp_path: Path, unix_s: str) -> None:
    run = write_run(tmp_path / "runs")
    (run / "meta.json").write_text(f'{{"created_unix_s": {unix_s}, "git": "abc"}}')
    out = tmp_path / "r.md"
    assert main(["report", str(run), "--md", str(out)]) == 0
    assert "abc" in out.read_text()
