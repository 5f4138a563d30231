"""A few episodes of a dataset of any size are in memory at a time; and whatever happens, nothing is half done."""

import dataclasses
import os
import tracemalloc

import numpy as np
import pytest

from roboloop.cli import main
from roboloop.core.files import staged
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.run import exchange
from tests.data.kit import episode_of, fill, schema_of
from tests.faults.test_disk_full import can_mount, small_disk

for package in ("minari", "h5py", "pyarrow"):
    pytest.importorskip(package)
OUT = {"minari": "toy-v0", "d4rl-hdf5": "file.hdf5", "lerobot": "lerobot"}
EPISODES, STEPS, SHAPE = 40, 20, (3, 48, 64)
RAW_BYTES = EPISODES * STEPS * int(np.prod(SHAPE))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    directory = tmp_path_factory.mktemp("large") / "a"
    schema = schema_of("pictures", chunk_rows=32)
    with StoreWriter(
        directory, dataclasses.replace(schema, spec=dataclasses.replace(schema.spec, obs_shape=SHAPE))
    ) as to:
        for number in range(EPISODES):
            episode, facts = episode_of(number, STEPS)
            obs = np.random.default_rng(number).integers(0, 256, (STEPS + 1, *SHAPE), np.uint8)
            to.append(episode._replace(obs=obs), facts)
    return directory


def peak_of(*args):
    """Return the most bytes that Python and numpy held while a verb was at work; what it imports is not counted."""
    tracemalloc.start()
    try:
        assert main(["dataset", *map(str, args)]) == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", OUT)
def test_a_few_episodes_are_in_memory_at_a_time(large, tmp_path, name):
    fill(tmp_path / "small", range(2), kind="pictures")
    peak_of("export", tmp_path / "small", tmp_path / f"small-{OUT[name]}", "--format", name)  # imports
    assert peak_of("export", large, tmp_path / OUT[name], "--format", name) < RAW_BYTES / 4
    if exchange.FORMATS[name].read:
        assert peak_of("import", tmp_path / OUT[name], tmp_path / "b", "--format", name) < RAW_BYTES / 4
        assert len(Dataset.open(tmp_path / "b")) == EPISODES


@pytest.mark.parametrize("name", [*OUT, "npz"])
def test_a_fault_half_way_leaves_nothing(tmp_path, name, monkeypatch):
    fill(tmp_path / "a", range(6))
    episode, count = Dataset.episode, [0]

    def breaks(self, row):
        count[0] += 1
        if count[0] > 3:
            raise KeyboardInterrupt
        return episode(self, row)

    monkeypatch.setattr(Dataset, "episode", breaks)
    out = tmp_path / OUT.get(name, "file.npz")
    assert main(["dataset", "export", str(tmp_path / "a"), str(out), "--format", name]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_a_killed_process_left_is_swept_up_by_the_next(tmp_path):
    stage = tmp_path / ".out.tmp"
    child = os.fork()
    if not child:
        with staged(tmp_path / "out") as target:
            target.mkdir()
            (target / "half").write_text("of it")
            os._exit(0)  # as kill -9 would: no clean-up
    os.waitpid(child, 0)
    assert (stage / "out" / "half").exists()
    with staged(tmp_path / "out") as target:
        assert not target.exists()
        assert not (tmp_path / "out").exists()
        target.write_text("whole")
    assert (tmp_path / "out").read_text() == "whole"
    assert not stage.exists()


def test_two_writers_of_one_target_do_not_meet(tmp_path):
    from roboloop.core.errors import DataError, RunExists

    with staged(tmp_path / "out") as target:
        with pytest.raises(RunExists, match="written by process"), staged(tmp_path / "out"):
            pass
        target.write_text("first")
    assert (tmp_path / "out").read_text() == "first"
    with pytest.raises(DataError, match="exists: nothing was changed"), staged(tmp_path / "out"):
        pass


@pytest.mark.parametrize("name", [*OUT, "npz"])
def test_a_full_disk_is_one_line_and_leaves_nothing(large, tmp_path, name, capsys):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("mounting a small disk needs root")
    with small_disk(tmp_path / "disk", 1):
        out = tmp_path / "disk" / OUT.get(name, "file.npz")
        assert main(["dataset", "export", str(large), str(out), "--format", name]) == 5
        said = capsys.readouterr().err
        assert "disk full" in said
        assert said.count("\n") == 1
        assert list((tmp_path / "disk").iterdir()) == []
