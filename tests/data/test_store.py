"""What is written is what is read, bit for bit, and the directory never takes more room than it says."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.errors import DataError, RunExists
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Facts, Schema
from roboloop.data.store import BLOCK_BYTES, StoreWriter
from tests.data.kit import KINDS, episode_of, fill, numbers_in, same, schema_of, spec_of
from tests.own import open_files


def shards(directory):
    return sorted(path.name for path in (directory / "shards").iterdir())


def apparent_bytes(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_rows", [1, 4, 50])
def test_what_is_read_equals_what_was_written_bit_for_bit(tmp_path, kind, chunk_rows):
    written = [episode_of(number, kind=kind) for number in range(12)]
    with StoreWriter(tmp_path, schema_of(kind, chunk_rows), shard_bytes=3000) as writer:
        assert [writer.append(*one) for one in written] == list(range(12))
    data = Dataset.open(tmp_path)
    assert len(data) == 12
    assert all(same(data.episode(row), episode) for row, (episode, _) in enumerate(written))
    for name in Facts._fields:
        expected = [getattr(facts, name) for _, facts in written]
        assert str(data.table[name].tolist()) == str(expected)  # as text, where nan is nan
    assert data.num_steps == sum(facts.length for _, facts in written)
    assert len(shards(tmp_path)) > 1


def test_smooth_pictures_come_back_too(tmp_path):
    # unlike noise these use every branch of the codec
    ramp = (np.arange(40)[:, None, None, None] + np.arange(12) * 2 + np.arange(8)[:, None] * 3).astype(np.uint8)
    obs = np.repeat(ramp, 3, axis=1) + np.array([0, 5, 9], np.uint8)[:, None, None]
    episode, facts = episode_of(0, length=39, kind="pictures")
    with StoreWriter(tmp_path, schema_of("pictures", 16)) as writer:
        writer.append(episode._replace(obs=obs), facts)
    data = Dataset.open(tmp_path)
    assert same(data.episode(0), episode._replace(obs=obs))
    assert data.table["bytes"][0] < obs.nbytes / 3


def test_nothing_is_visible_before_commit(tmp_path):
    writer = StoreWriter(tmp_path, schema_of())
    data = Dataset.open(tmp_path)
    writer.append(*episode_of(0))
    assert not data.refresh()
    assert len(data) == 0
    writer.commit()
    assert data.refresh()
    assert numbers_in(data) == [0]
    assert not data.refresh()
    writer.close()


def files_below(directory):
    """Return the files of a directory that this process has open; those of other tests are closed when they like."""
    return [name for name in open_files(os.getpid()) if Path(name).is_relative_to(directory)]


def test_a_view_that_nobody_holds_any_more_holds_no_files(tmp_path):
    fill(tmp_path / "data", range(1))
    view = Dataset.open(tmp_path / "data")
    assert len(files_below(tmp_path)) == 2
    del view
    assert not files_below(tmp_path)


def test_a_writer_goes_on_where_the_last_one_stopped(tmp_path):
    fill(tmp_path, range(5))
    with StoreWriter(tmp_path, schema_of()) as writer:
        assert writer.append(*episode_of(5)) == 5
        assert writer.live["id"].tolist() == list(range(6))
    assert numbers_in(Dataset.open(tmp_path)) == list(range(6))


def test_a_shard_is_unlinked_when_its_last_episode_is_evicted(tmp_path):
    fill(tmp_path, range(20), shard_bytes=1500)
    before = shards(tmp_path)
    data = Dataset.open(tmp_path)
    first = [entry.id for entry in map(data.entry, range(20)) if entry.shard == 0]
    with StoreWriter(tmp_path, schema_of()) as writer:
        writer.evict(first[1:])
        assert shards(tmp_path) == before
        writer.evict(first[:1])
        assert shards(tmp_path) == before[1:]
        with pytest.raises(DataError, match=f"no live episode {first[0]}"):
            writer.evict(first[:1])
    assert numbers_in(Dataset.open(tmp_path)) == [n for n in range(20) if n not in first]


def test_an_episode_that_is_not_committed_can_be_evicted(tmp_path):
    with StoreWriter(tmp_path, schema_of()) as writer:
        kept, gone = writer.append(*episode_of(0)), writer.append(*episode_of(1))
        writer.evict([gone])
        assert writer.live["id"].tolist() == [kept]
    assert numbers_in(Dataset.open(tmp_path)) == [0]


def test_compacting_moves_the_living_and_frees_the_rest(tmp_path):
    fill(tmp_path, range(400), kind="pictures", shard_bytes=100_000)
    keep = list(range(0, 400, 5))
    with StoreWriter(tmp_path, schema_of("pictures"), shard_bytes=100_000) as writer:
        before = writer.disk_bytes
        writer.evict([n for n in range(400) if n not in keep])
        writer.compact(before)
        assert writer.disk_bytes <= before  # it fits: nothing to do
        writer.compact(before // 2)
        assert writer.disk_bytes <= before // 2
        writer.compact(0)
        assert writer.disk_bytes < before // 3
        assert writer.live["bytes"].sum() == sum((tmp_path / "shards" / n).stat().st_size for n in shards(tmp_path))
        assert writer.append(*episode_of(400, kind="pictures")) == 400
    assert numbers_in(Dataset.open(tmp_path)) == [*keep, 400]


def test_the_room_on_disk_is_known_at_every_moment(tmp_path):
    writer = StoreWriter(tmp_path, schema_of("pictures"), shard_bytes=20_000)
    rng = np.random.default_rng(0)
    for number in range(60):
        writer.append(*episode_of(number, kind="pictures"))
        if number % 7 == 0:
            writer.evict(rng.choice(writer.live["id"], 3 if number else 1, replace=False).tolist())
        if number % 5 == 0:
            writer.commit()
        if number % 20 == 19:
            writer.compact(writer.disk_bytes * 3 // 4)
        blocks = 2 * BLOCK_BYTES + BLOCK_BYTES * (len(shards(tmp_path)) + 3)
        assert apparent_bytes(tmp_path) <= writer.disk_bytes <= apparent_bytes(tmp_path) + blocks + 5000
    writer.close()


def test_an_index_full_of_the_dead_is_written_anew_and_no_number_comes_twice(tmp_path):
    with StoreWriter(tmp_path, schema_of(), shard_bytes=5000) as writer:
        writer.note({"text": "kept"})
        data = Dataset.open(tmp_path)
        sizes = []
        for number in range(1500):
            writer.append(*episode_of(number, length=1))
            if number >= 10:
                writer.evict([number - 10])
            if number % 50 == 49:
                writer.commit()
                sizes.append((tmp_path / "index.log").stat().st_size)
                data.refresh()
                assert numbers_in(data) == list(range(number - 9, number + 1))
        assert sizes != sorted(sizes)
        assert max(sizes) < 600_000
        last = writer.live["id"].tolist()
        writer.evict(last)
    with StoreWriter(tmp_path, schema_of()) as writer:
        assert writer.append(*episode_of(1500, length=1)) == 1500
    data = Dataset.open(tmp_path)
    assert data.notes == [{"text": "kept"}]
    assert data.table["id"].tolist() == [1500]


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    writer = StoreWriter(tmp_path, schema_of())
    with pytest.raises(RunExists, match=f"is written by process {os.getpid()}"):
        StoreWriter(tmp_path, schema_of())
    code = (
        "import sys; from pathlib import Path; from tests.data.kit import *\n"
        "from roboloop.core.errors import RunExists\n"
        f"try: StoreWriter(Path({str(tmp_path)!r}), schema_of())\n"
        "except RunExists: sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    writer.append(*episode_of(0))
    writer.close()
    assert numbers_in(Dataset.open(tmp_path)) == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "toy/other"}, "env_id 'toy/toy' is not 'toy/other'"),
        ({"chunk_rows": 5}, "chunk_rows 4 is not 5"),
        ({"spec": spec_of("pictures")}, r"spec.obs_shape \(3,\) is not \(3, 8, 12\)"),
        ({"spec": dataclasses.replace(spec_of(), max_episode_steps=7)}, "spec.max_episode_steps 100 is not 7"),
    ],
)
def test_a_dataset_takes_only_episodes_of_its_schema(tmp_path, changes, message):
    fill(tmp_path, range(1))
    with pytest.raises(DataError, match=message):
        StoreWriter(tmp_path, schema_of(**changes))
    StoreWriter(tmp_path, schema_of(source={"run": "another"})).close()


def test_a_schema_survives_json():
    for kind in KINDS:
        schema = dataclasses.replace(Schema.of("toy/toy", spec_of(kind)), source={"config": {"seed": 3}})
        assert Schema.from_data(json.loads(json.dumps(schema.to_data()))) == schema


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"is not a dataset: it holds 'thesis\.txt'"):
        StoreWriter(tmp_path, schema_of())
    with pytest.raises(DataError, match="is not a dataset"):
        Dataset.open(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(DataError, match="is not a directory"):
        StoreWriter(tmp_path / "thesis.txt", schema_of())


def test_a_dataset_of_the_format_before_is_read_and_goes_on(tmp_path):
    fill(tmp_path, range(2))
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 1}))
    assert len(Dataset.open(tmp_path)) == 2
    fill(tmp_path, range(2, 3))
    assert len(Dataset.open(tmp_path)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "dataset format 3 is none of 1 to 2, which this version reads"),
        ({"codec": "zstd-pictures"}, "codec 'zstd-pictures'"),
        ({"spec": {}}, "schema is damaged"),
    ],
)
def test_another_format_is_refused_in_one_line(tmp_path, change, message):
    fill(tmp_path, range(1))
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message) as error:
        Dataset.open(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e, f: (e._replace(action=e.action.astype(np.float64)), f), "'action' is float64"),
        (lambda e, f: (e._replace(obs=e.obs[:-1]), f), r"'obs' is float32 \[6, 3\], expected float32 \[7, 3\]"),
        (lambda e, f: (e, f._replace(length=5)), "6 steps is said to have 5"),
        (
            lambda e, f: (e._replace(truncated=np.roll(e.truncated, 2), terminated=e.truncated & False), f),
            "ends at step 1",
        ),
        (lambda e, f: (e._replace(truncated=e.truncated & False), f), "has no end"),
    ],
)
def test_what_is_not_one_whole_episode_is_refused(tmp_path, change, message):
    with StoreWriter(tmp_path, schema_of()) as writer, pytest.raises(DataError, match=message):
        writer.append(*change(*episode_of(1, length=6)))
