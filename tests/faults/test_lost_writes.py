"""What a power cut, an editor or a sync tool leaves of a run: it goes on exactly, or says in one line why not."""

import json
import os
import shutil

import pytest
import yaml

from roboloop.cli import main
from roboloop.core.errors import DataError, UserError
from roboloop.core.state import equal
from roboloop.run.rundir import RunDir
from tests.run.helpers import remains, resume, train


@pytest.fixture
def whole(tiny):
    return remains(train(tiny(experiment="whole")))


@pytest.fixture
def crashed(tiny):
    return train(tiny(experiment="crashed"), crash_after=250)


@pytest.mark.parametrize("keep", [0, 1, 10, 40], ids=lambda n: f"{n} lines")
def test_a_config_that_was_cut_is_never_filled_up_with_defaults(crashed, keep):
    lines = (crashed / "config.yaml").read_text().splitlines(keepends=True)
    (crashed / "config.yaml").write_text("".join(lines[:keep]))
    with pytest.raises(DataError, match=r"config\.yaml"):
        RunDir.open(crashed)


def test_an_empty_config_of_an_older_version_is_refused_too(crashed):
    (crashed / "config.yaml").write_text("")
    with pytest.raises(DataError, match="not whole"):
        RunDir.open(crashed)


@pytest.mark.parametrize("key", ["seed", "algo.gamma", "replay.capacity", "env.id"])
def test_an_edited_config_is_refused_and_the_key_is_named_where_its_digest_was_taken_out(crashed, key):
    text = (crashed / "config.yaml").read_text()
    data = yaml.safe_load(text)
    *sections, name = key.split(".")
    section = data
    for part in sections:
        section = section[part]
    section[name] = {"seed": 9, "gamma": 0.5, "capacity": 999, "id": "gym/MountainCarContinuous-v0"}[name]
    edited = yaml.safe_dump(data, sort_keys=False)
    (crashed / "config.yaml").write_text(text.splitlines(keepends=True)[0] + edited)
    with pytest.raises(DataError, match="was changed after it was written"):
        resume(crashed)
    (crashed / "config.yaml").write_text(edited)
    with pytest.raises(UserError, match=key):
        resume(crashed)
    assert main(["eval", str(crashed), "--episodes", "1"]) == 2


def test_an_edited_config_is_left_out_of_a_report_and_named(crashed, tiny, tmp_path, capsys):
    train(tiny(experiment="sound"))
    text = (crashed / "config.yaml").read_text()
    (crashed / "config.yaml").write_text(text.replace("gamma: 0.99", "gamma: 0.98", 1))
    out = tmp_path / "r.json"
    words = ["report", str(crashed.parents[2]), "--out", str(tmp_path / "r.html"), "--save", str(out)]
    assert main(words) == 0
    said = "".join(capsys.readouterr())
    assert "was changed after it was written" in said
    assert [run["experiment"] for run in json.loads(out.read_text())["runs"]] == ["sound"]


@pytest.mark.parametrize("odd", ["", "{}", "[]", "null", '{"state": "done"}', '{"state": "done", "step": "x"}', None])
def test_a_run_goes_on_without_its_status(crashed, whole, odd):
    (crashed / "status.json").unlink()
    if odd is not None:
        (crashed / "status.json").write_text(odd)
    assert equal(remains(resume(crashed)), whole)


@pytest.mark.parametrize("size", [None, 0, 10])
def test_a_run_goes_on_with_a_short_timing_log_or_none(crashed, whole, size):
    if size is None:
        (crashed / "timing.jsonl").unlink()
    else:
        os.truncate(crashed / "timing.jsonl", size)
    assert equal(remains(resume(crashed)), whole)


def test_copies_of_checkpoints_and_files_of_sync_tools_are_left_alone(crashed, whole):
    newest = max((crashed / "checkpoints").glob("step-*"))
    for name in (f"{newest.name}.bak", "step-best", "step-7", "step-000000000900 (conflict)"):
        shutil.copytree(newest, newest.with_name(name))
    (crashed / "checkpoints" / "step-000000009999").touch()
    shutil.copy(crashed / "journal" / "seg-00000.rlj", crashed / "journal" / "seg-00000 (conflict).rlj")
    assert equal(remains(resume(crashed)), whole)
    assert newest.with_name("step-best").is_dir()


def test_a_checkpoint_with_a_sound_digest_that_does_not_fit_is_left_for_the_one_before(crashed, whole):
    from roboloop.run import checkpoint

    newest = max((crashed / "checkpoints").glob("step-*"))
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["body"]["tree"]["clock"] = []
    manifest["sha256"] = checkpoint._digest(manifest["body"])
    (newest / "manifest.json").write_text(json.dumps(manifest))
    said = []
    assert equal(remains(resume(crashed, said=said)), whole)
    assert "does not fit" in "\n".join(said)


def test_a_changed_digit_of_the_metrics_is_found_and_an_older_checkpoint_taken(crashed, whole):
    lines = (crashed / "metrics.jsonl").read_text().splitlines(keepends=True)
    at = max(i for i, line in enumerate(lines) if json.loads(line)["step"] <= 200)
    lines[at] = lines[at].replace('"step": 2', '"step": 1', 1)
    (crashed / "metrics.jsonl").write_text("".join(lines))
    said = []
    assert equal(remains(resume(crashed, said=said)), whole)
    assert "does not match its checksum" in "\n".join(said)


def test_a_changed_return_of_an_evaluation_is_found_by_the_next(tiny, capsys):
    path = train(tiny())
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    (file,) = (path / "eval").glob("*.jsonl")
    text = file.read_text()
    at = text.index('"return": -') + len('"return": -')
    file.write_text(text[:at] + ("8" if text[at] != "8" else "3") + text[at + 1 :])
    assert main(["eval", str(path), "--episodes", "2"]) == 2
    assert "does not match its checksum" in capsys.readouterr().err


def test_a_moved_run_is_evaluated_again_and_its_summary_is_json(tiny, capsys):
    path = train(tiny())
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    path.rename(path.with_name("moved"))
    moved = path.with_name("moved")
    assert main(["eval", str(moved), "--episodes", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first
    (summary,) = (moved / "eval").glob("*.summary.json")
    assert json.loads(summary.read_text(), parse_constant=lambda word: pytest.fail(word))["success"] is None


@pytest.mark.parametrize("name", ["lock", ".status.json.tmp", ".config.yaml.tmp", "checkpoints", "eval", "journal"])
def test_no_link_of_a_run_is_written_through(crashed, tmp_path, name):
    victim = tmp_path / "victim"
    if name in ("checkpoints", "eval", "journal"):
        victim.mkdir()
        (victim / ".tmp-step-000000000001").mkdir()
        (victim / "step-000000000001").mkdir()
        shutil.rmtree(crashed / name, ignore_errors=True)
    else:
        victim.write_text("precious")
        (crashed / name).unlink(missing_ok=True)
    (crashed / name).symlink_to(victim)
    main(["train", "--resume", str(crashed), "--steps", "410"])
    main(["eval", str(crashed), "--episodes", "1"])
    if victim.is_dir():
        assert sorted(p.name for p in victim.iterdir()) == [".tmp-step-000000000001", "step-000000000001"]
    else:
        assert victim.read_text() == "precious"
