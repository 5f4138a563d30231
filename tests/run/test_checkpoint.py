import os

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.state import equal
from roboloop.data.journal import START
from roboloop.run import checkpoint
from roboloop.run.checkpoint import Checkpoint, Diverged
from roboloop.track.metrics import LogMark
from tests.run.helpers import remains, resume, train


def save(directory, step, value=1.0):
    state = {"algo": {"w": np.full(100, value, np.float32)}, "clock": {"step": step}}
    point = Checkpoint(directory, step, state, START, {"metrics.jsonl": LogMark(0, None)}, {"update_s": 1.5}, {})
    return checkpoint.save(directory, point)


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save(tmp_path, 5)
    point = checkpoint.at_step(tmp_path, 5)
    assert point.step == 5
    assert equal(point.state, {"algo": {"w": np.ones(100, np.float32)}, "clock": {"step": 5}})


@pytest.mark.parametrize(
    "written", [{}, {"seed": 0}, {"seed": 0, "env.kwargs.g": 3.0}, {"seed": 0, "env.kwargs": {"g": 3.0}}], ids=str
)
def test_what_a_mapping_held_is_known_as_every_version_wrote_it(tmp_path, written):
    point = Checkpoint(tmp_path / "run" / "checkpoints" / "step-5", 5, {}, START, {}, {}, written)
    kwargs = {"g": 3.0} if len(written) > 1 else {}
    point.check_config({"seed": 0, "env.kwargs": kwargs, "a.new.key": 1})
    for other in ({}, {"g": 3.0}, {"g": 4.0}):
        if written and other != kwargs:
            with pytest.raises(ConfigError, match=r"config\.yaml says env\.kwargs"):
                point.check_config({"seed": 0, "env.kwargs": other})


def test_any_flipped_byte_in_any_file_is_found(tmp_path):
    path = save(tmp_path, 5)
    checkpoint.read(path)
    for file in path.iterdir():
        whole = file.read_bytes()
        for place in range(0, len(whole), 7):
            data = bytearray(whole)
            data[place] ^= 4
            file.write_bytes(data)
            with pytest.raises(DataError):
                checkpoint.read(path)
        file.write_bytes(whole)
    checkpoint.read(path)


@pytest.mark.parametrize("name", ["manifest.json", "state.safetensors"])
def test_a_missing_or_torn_file_is_found(tmp_path, name):
    path = save(tmp_path, 5)
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError):
        checkpoint.read(path)
    (path / name).unlink()
    with pytest.raises(DataError):
        checkpoint.read(path)


def test_retention_keeps_the_newest_the_best_and_the_milestones(tmp_path):
    for step in range(10, 100, 10):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, keep_last=2, keep={20, 50})
    assert checkpoint.steps(tmp_path) == [20, 50, 80, 90]


def test_non_finite_weights_are_never_saved(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(Diverged, match=r"algo\.w is not finite"):
        save(tmp_path, 2, value=np.nan)
    assert checkpoint.steps(tmp_path) == [1]


def test_an_unfinished_save_is_not_taken_for_a_checkpoint(tmp_path):
    save(tmp_path, 1)
    os.rename(save(tmp_path, 2), tmp_path / ".tmp-step-000000000002")
    assert [p.step for p in checkpoint.newest_first(tmp_path, print)] == [1]
    save(tmp_path, 2)
    assert checkpoint.steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("victim", ["manifest.json", "state.safetensors", "journal"])
def test_damage_falls_back_to_the_checkpoint_before_and_says_so(tiny, victim):
    whole = train(tiny(experiment="whole"))
    path = train(tiny(experiment="hurt"), crash_after=350)
    newest = sorted((path / "checkpoints").glob("step-*"))[-1]
    file = sorted((path / "journal").glob("*.rlj"))[-1] if victim == "journal" else newest / victim
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)
    said = []
    resume(path, said=said)
    assert len(said) == 1
    assert "damaged" in said[0]
    assert equal(remains(whole), remains(path))


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone(tiny):
    path = train(tiny(), crash_after=350)
    for point in (path / "checkpoints").glob("step-*"):
        (point / "manifest.json").write_text("{}")
    before = sorted(p.name for p in (path / "checkpoints").iterdir())
    with pytest.raises(DataError, match="no checkpoint"):
        resume(path)
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == before
