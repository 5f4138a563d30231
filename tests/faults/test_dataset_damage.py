"""Damaged and hostile datasets: verify says so, writers refuse or lose nothing, repair brings back what is whole."""

import contextlib
import json
import os
import shutil
import zlib

import h5py
import numpy as np
import pytest

from roboloop.cli import main
from roboloop.core.errors import DataError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from tests.data.kit import episode_of, fill, numbers_in, schema_of
from tests.run.helpers import train

EPISODES = 12


@pytest.fixture
def data(tmp_path):
    """A dataset of several shards in which one episode was evicted."""
    fill(tmp_path / "data", range(EPISODES), shard_bytes=1500)
    with StoreWriter(tmp_path / "data", schema_of()) as writer:
        writer.evict([5])
    return tmp_path / "data"


KEPT = [n for n in range(EPISODES) if n != 5]


def recorded(directory):
    """Return the bytes of each live episode, as they stand in the shards."""
    view = Dataset.open(directory)
    entries = [view.entry(row) for row in range(len(view))]
    return [(directory / "shards" / f"{e.shard:06d}.bin").read_bytes()[e.offset :][: e.size] for e in entries]


def holds_all(directory, pieces):
    """Say whether all these bytes are still somewhere in the shards or aside."""
    files = [path.read_bytes() for name in ("shards", "aside") for path in (directory / name).glob("*.bin")]
    return all(any(piece in file for file in files) for piece in pieces)


def said(capsys, *words):
    """Run a verb; return its exit code and what it said, which is one line if it failed."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert err.count("\n") == (1 if code else 0), err
    return code, out + err


def lines_of(data):
    return (data / "index.log").read_bytes().splitlines(keepends=True)


def lose_index(data):
    (data / "index.log").unlink()


def empty_index(data):
    (data / "index.log").write_bytes(b"")


def cut_index_in_a_line(data):
    content = (data / "index.log").read_bytes()
    (data / "index.log").write_bytes(content[: len(content) // 2])


def cut_index_at_a_line(data):
    (data / "index.log").write_bytes(b"".join(lines_of(data)[:4]))


def flip_a_byte_of_the_index(data):
    lines = lines_of(data)
    lines[3] = lines[3].replace(b"episode", b"epIsode", 1)
    (data / "index.log").write_bytes(b"".join(lines))


def change_a_line_with_its_checksum(data):
    lines = lines_of(data)
    text = lines[3].partition(b" ")[2].strip().replace(b'"offset":', b'"offset":1')
    lines[3] = b"%08x %s\n" % (zlib.crc32(text), text)
    (data / "index.log").write_bytes(b"".join(lines))


INDEX_DAMAGE = (
    lose_index, empty_index, cut_index_in_a_line, cut_index_at_a_line, flip_a_byte_of_the_index,
    change_a_line_with_its_checksum,
)  # fmt: skip


@pytest.mark.parametrize("damage", INDEX_DAMAGE, ids=lambda f: f.__name__)
def test_a_lost_or_changed_index_is_found_refused_and_rebuilt(data, capsys, damage):
    before = recorded(data)
    damage(data)
    left = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    code, words = said(capsys, "dataset", "verify", data)
    assert code == 2
    assert "index.log is damaged" in words
    assert "roboloop dataset repair" in words
    with pytest.raises(DataError, match=r"index\.log is damaged"):
        StoreWriter(data, schema_of())
    assert {path: path.read_bytes() for path in left if path.name != "lock"} == {
        path: content for path, content in left.items() if path.name != "lock"
    }
    code, words = said(capsys, "dataset", "repair", data)
    assert code == 0
    assert "read back from the shards" in words
    again = Dataset.open(data)
    # where the line that evicted it is lost, an evicted episode whose bytes still stand comes back
    assert numbers_in(again) in (KEPT, list(range(EPISODES)))
    assert again.table["id"].tolist() == numbers_in(again)
    assert holds_all(data, before)
    assert said(capsys, "dataset", "verify", data)[0] == 0
    with StoreWriter(data, schema_of()) as writer:
        assert writer.append(*episode_of(EPISODES)) == EPISODES
    assert numbers_in(Dataset.open(data))[-1] == EPISODES


def test_verify_counts_the_bytes_that_no_line_refers_to(data, capsys):
    empty_index(data)
    size = sum(file.stat().st_size for file in (data / "shards").iterdir())
    assert f"({size:,} bytes of shards are referred to by no line)" in said(capsys, "dataset", "verify", data)[1]


def test_a_cut_index_is_no_smaller_dataset_for_those_who_only_read(data, capsys, tmp_path):
    cut_index_at_a_line(data)
    for words in (["info", data], ["filter", data, tmp_path / "few"], ["merge", tmp_path / "all", data]):
        code, line = said(capsys, "dataset", *words)
        assert code == 2
        assert "lines that were committed are missing" in line


@pytest.mark.parametrize("damage", [lose_index, empty_index, cut_index_at_a_line], ids=lambda f: f.__name__)
def test_an_index_that_was_lost_together_with_its_mark_is_rebuilt_by_the_next_writer(data, capsys, damage):
    before = recorded(data)
    damage(data)
    (data / "index.mark").unlink()
    if damage is not cut_index_at_a_line:  # that is what an older, shorter dataset looks like
        assert said(capsys, "dataset", "verify", data)[0] == 2
    StoreWriter(data, schema_of()).close()
    assert numbers_in(Dataset.open(data)) == list(range(EPISODES))
    assert holds_all(data, before)


def test_a_lost_mark_is_no_damage(data, capsys):
    (data / "index.mark").unlink()
    assert said(capsys, "dataset", "verify", data)[0] == 0
    fill(data, range(EPISODES, EPISODES + 2), shard_bytes=1500)
    assert numbers_in(Dataset.open(data)) == [*KEPT, EPISODES, EPISODES + 1]


@pytest.mark.parametrize("verb", ["verify", "repair", "info"])
def test_a_lost_schema_is_named_and_nothing_is_changed(data, capsys, verb):
    before = {path: path.read_bytes() for path in (data / "shards").iterdir()}
    schema = (data / "schema.json").read_bytes()
    (data / "schema.json").unlink()
    code, words = said(capsys, "dataset", verb, data)
    assert code == 2
    assert "schema.json is missing" in words
    with pytest.raises(DataError, match=r"schema\.json is missing"):
        StoreWriter(data, schema_of())
    assert {path: path.read_bytes() for path in (data / "shards").iterdir()} == before
    (data / "schema.json").write_bytes(schema)
    assert numbers_in(Dataset.open(data)) == KEPT


def test_a_torn_shard_costs_the_torn_episodes_only(data, capsys):
    last = Dataset.open(data).entry(len(KEPT) - 1)
    shard = data / "shards" / f"{last.shard:06d}.bin"
    os.truncate(shard, last.offset + 20)
    before = recorded(data)
    code, words = said(capsys, "dataset", "verify", data)
    assert code == 2
    assert f"episode {last.id}: the checksum of" in words
    StoreWriter(data, schema_of()).close()
    assert holds_all(data, before)
    code, words = said(capsys, "dataset", "repair", data)
    assert code == 0
    assert f"dropped episode {last.id}" in words
    assert numbers_in(Dataset.open(data)) == KEPT[:-1]
    assert holds_all(data, before)


def test_a_damaged_label_costs_nothing(data, capsys):
    entry = Dataset.open(data).entry(2)
    shard = data / "shards" / f"{entry.shard:06d}.bin"
    content = bytearray(shard.read_bytes())
    content[entry.end - 4] ^= 1
    shard.write_bytes(content)
    assert "episode 2: the checksum of its label differs" in said(capsys, "dataset", "verify", data)[1]
    assert said(capsys, "dataset", "repair", data)[0] == 0
    assert numbers_in(Dataset.open(data)) == KEPT
    assert said(capsys, "dataset", "verify", data)[0] == 0


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_shard_that_no_line_refers_to_is_taken_up_and_not_deleted(data, capsys, tmp_path, has_mark):
    with StoreWriter(tmp_path / "later", schema_of(), 1 << 20) as writer:
        for number in range(EPISODES + 3):
            writer.append(*episode_of(number))
        writer.evict(range(EPISODES))
        writer.compact(0)  # now its only shard holds those of the numbers that follow
    (shard,) = (tmp_path / "later" / "shards").iterdir()
    shutil.copy(shard, data / "shards" / "000100.bin")
    if not has_mark:
        (data / "index.mark").unlink()
    before = [*recorded(data), shard.read_bytes()]
    assert "bytes that were never committed" in said(capsys, "dataset", "verify", data)[1]
    StoreWriter(data, schema_of()).close()
    assert numbers_in(Dataset.open(data)) == [*KEPT, *range(EPISODES, EPISODES + 3)]
    assert holds_all(data, before)


def test_bytes_without_a_label_are_moved_aside_where_the_mark_is_lost(data):
    stray = b"of an older version, or of a stranger" * 9
    (data / "shards" / "000100.bin").write_bytes(stray)
    (data / "index.mark").unlink()
    before = [*recorded(data), stray]
    StoreWriter(data, schema_of()).close()
    assert not (data / "shards" / "000100.bin").exists()
    assert holds_all(data, before)


def test_a_dataset_of_an_older_version_is_read_appended_to_and_compacted(data):
    older(data)
    assert numbers_in(Dataset.open(data)) == KEPT
    with StoreWriter(data, schema_of(), shard_bytes=1500) as writer:
        for number in range(EPISODES, EPISODES + 5):
            writer.append(*episode_of(number))
        writer.evict([0, 1])
        writer.compact(0)
    assert numbers_in(Dataset.open(data)) == [*KEPT[2:], *range(EPISODES, EPISODES + 5)]


def test_what_an_older_version_lost_the_index_of_is_kept_aside(data, capsys):
    older(data)
    before = recorded(data)
    empty_index(data)
    assert said(capsys, "dataset", "verify", data)[0] == 2
    assert said(capsys, "dataset", "repair", data)[0] == 0
    assert len(Dataset.open(data)) == 0
    assert holds_all(data, before)


def older(data):
    """Make a dataset as an older version wrote it: no labels, no mark."""
    shards = {path.name: path.read_bytes() for path in (data / "shards").iterdir()}
    entries = [Dataset.open(data).entry(row) for row in range(len(KEPT))]
    lines, written = [], dict.fromkeys(shards, b"")
    for entry in entries:
        name = f"{entry.shard:06d}.bin"
        record = entry._replace(offset=len(written[name]), label=0).to_record()
        written[name] += shards[name][entry.offset : entry.end - entry.label]
        text = json.dumps(record).encode()
        lines.append(b"%08x %s\n" % (zlib.crc32(text), text))
    for name, content in written.items():
        (data / "shards" / name).write_bytes(content)
    (data / "index.log").write_bytes(b"".join(lines))
    (data / "index.mark").unlink()


@pytest.mark.parametrize("name", ["schema.json", "index.log", "index.mark", "shards/000000.bin", "shards", "lock"])
@pytest.mark.parametrize("what", ["fifo", "link", "directory", "device"])
def test_what_is_no_regular_file_is_refused_at_once_and_not_followed(data, tmp_path, capsys, name, what):
    victim, target = tmp_path / "victim", data / name
    shutil.move(target, victim)
    held = {path: path.read_bytes() for path in [victim, *victim.rglob("*")] if path.is_file()}
    {
        "fifo": lambda: os.mkfifo(target), "link": lambda: target.symlink_to(victim), "directory": target.mkdir,
        "device": lambda: target.symlink_to("/dev/zero"),
    }[what]()  # fmt: skip
    assert said(capsys, "dataset", "verify", data)[0] == 2 or name in ("lock", "index.mark")
    for verb in ("info", "repair", "verify"):
        assert said(capsys, "dataset", verb, data)[0] in (0, 2)
    with contextlib.suppress(DataError), StoreWriter(data, schema_of()) as writer:
        writer.append(*episode_of(99))
    assert {path: path.read_bytes() for path in held} == held


ABSURD = [
    ("facts", {}), ("facts", None), ("parts", [[1, 2]]), ("parts", [[1 << 62, 0]] * 2), ("parts", "x"), ("id", -1),
    ("id", 1 << 70), ("id", None), ("shard", 1 << 70), ("shard", "../x"), ("offset", -1), ("offset", 1 << 62),
    ("kind", []), ("label", -5), ("label", 1 << 60),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ABSURD, ids=str)
def test_an_index_line_that_cannot_be_true_is_one_line_though_its_checksum_fits(data, capsys, key, value):
    lines = lines_of(data)
    record = json.loads(lines[2].partition(b" ")[2])
    text = json.dumps({**record, key: value}).encode()
    lines[2] = b"%08x %s\n" % (zlib.crc32(text), text)
    (data / "index.log").write_bytes(b"".join(lines))
    code, words = said(capsys, "dataset", "verify", data)
    assert code == 2
    assert "index.log is damaged" in words
    assert said(capsys, "dataset", "repair", data)[0] == 0
    assert numbers_in(Dataset.open(data)) == KEPT


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_rows": 1 << 60}, {"chunk_rows": 0.5}, {"env_id": ["x"]}, {"source": 3}, {"source": {"env": 3}},
        {"codec": "os:system"}, {"spec": {"obs_shape": [1 << 40]}}, {"spec": {"obs_shape": [-1]}},
        {"spec": {"obs_dtype": "|O"}}, {"spec": {"obs_dtype": "<f99"}},
        {"spec": {"obs_dtype": [["a", "<f4", [1 << 50]]]}}, {"spec": {"action_low": [None] * 3}},
        {"spec": {"protocol": []}}, {"spec": {"unknown": 1}},
        {"spec": {"max_episode_steps": float("nan")}},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_cannot_be_true_is_one_line(data, capsys, change):
    path = data / "schema.json"
    schema = json.loads(path.read_text())
    for key, value in change.items():
        schema[key] = {**schema[key], **value} if key == "spec" else value
    path.write_text(json.dumps(schema))
    before = {path: path.read_bytes() for path in (data / "shards").iterdir()}
    for verb in ("info", "verify", "repair"):
        assert said(capsys, "dataset", verb, data)[0] == 2
    assert {path: path.read_bytes() for path in (data / "shards").iterdir()} == before


def test_names_with_escape_sequences_do_not_reach_the_terminal(tmp_path, capsys):
    evil = "\x1b[31mred\x07"
    with StoreWriter(tmp_path / "a", schema_of(env_id=evil)) as writer:
        episode, facts = episode_of(0)
        writer.append(episode, facts._replace(task=evil))
        writer.note({evil: evil})
    for words in (["info", tmp_path / "a"], ["verify", tmp_path / "a"], ["filter", tmp_path / "a", "x", "--task", "y"]):
        assert "\x1b" not in said(capsys, "dataset", *words)[1]


def test_a_shard_full_of_false_labels_takes_no_time(data, capsys):
    from roboloop.data.labels import label_of

    entry = Dataset.open(data).entry(0)
    false = label_of(77, np.array([[1 << 20, 1], [1 << 20, 2]]), entry.facts) * 3000
    (data / "shards" / "000100.bin").write_bytes(bytes(1 << 20) + false)
    empty_index(data)
    assert said(capsys, "dataset", "repair", data)[0] == 0
    assert numbers_in(Dataset.open(data)) == list(range(EPISODES))


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A file that exists once a stranger's code has run; the module that makes it can be imported."""
    mark = tmp_path / "ran"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "dataset_stranger.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Env: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    return mark


def test_a_hostile_dataset_runs_no_code_in_any_verb(tmp_path, capsys, stranger):
    env_id = "gym/dataset_stranger:Env-v0"
    source = {"env": {"id": env_id, "max_episode_steps": 5}, "algo": "dataset_stranger:Env"}
    with StoreWriter(tmp_path / "a", schema_of(env_id=env_id, source=source)) as writer:
        for number in range(3):
            writer.append(*episode_of(number))
    out = tmp_path / "out"
    verbs = [["info"], ["verify"], ["repair"], ["filter", out / "f"], ["export", out / "n.npz", "--format", "npz"]]
    verbs += [["export", out / "h", "--format", "d4rl-hdf5"], ["export", out / "toy-v0", "--format", "minari"]]
    out.mkdir()
    for verb, *rest in verbs:
        assert said(capsys, "dataset", verb, tmp_path / "a", *rest)[0] == 0
    for name, file in (("npz", "n.npz"), ("d4rl-hdf5", "h"), ("minari", "toy-v0")):
        assert said(capsys, "dataset", "import", out / file, out / f"of-{name}", "--format", name)[0] == 0
    for algo in ("bc", "dt"):
        words = ["train", "--algo", algo, "--dataset", tmp_path / "a", "--runs-dir", tmp_path / "runs", "--steps", "2"]
        code, line = said(capsys, *words)
        assert code == 2
        assert "--trust" in line
    assert not stranger.exists()


def test_minari_does_not_make_the_environment_that_a_file_describes(tmp_path, capsys, stranger):
    fill(tmp_path / "a", range(2))
    assert said(capsys, "dataset", "export", tmp_path / "a", tmp_path / "toy-v0", "--format", "minari")[0] == 0
    path = tmp_path / "toy-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"]
    spec = {"id": "Any-v0", "entry_point": "dataset_stranger:Env", "additional_wrappers": []}
    path.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
    assert said(capsys, "dataset", "import", tmp_path / "toy-v0", tmp_path / "b", "--format", "minari")[0] == 2
    assert not stranger.exists()


@pytest.mark.parametrize("way", ["link", "storage", "virtual", "bomb", "objects"])
def test_an_hdf5_file_that_leads_elsewhere_or_lies_is_refused(tmp_path, capsys, way):
    fill(tmp_path / "a", range(2))
    path, other = tmp_path / "a.hdf5", tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros((1000, 3), np.float32)
    assert said(capsys, "dataset", "export", tmp_path / "a", path, "--format", "d4rl-hdf5")[0] == 0
    with h5py.File(path, "r+") as file:
        old = file["rewards"]
        shape, dtype = old.shape, old.dtype
        del file["rewards"]
        if way == "link":
            file["rewards"] = h5py.ExternalLink(str(other), "/x")
        elif way == "storage":
            file.create_dataset("rewards", shape, dtype, external=[(str(other), 0, 1 << 20)])
        elif way == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(str(other), "x", shape)
            file.create_virtual_dataset("rewards", layout)
        elif way == "bomb":
            file.create_dataset("rewards", (1 << 45,), dtype, chunks=(1 << 20,))
        else:
            file.create_dataset("rewards", shape, h5py.string_dtype())
    code, words = said(capsys, "dataset", "import", path, tmp_path / "b", "--format", "d4rl-hdf5")
    assert code == 2
    assert {"bomb": "cannot be", "objects": "no plain numbers"}.get(way, "leads to another file") in words
    assert not (tmp_path / "b").exists()


def test_resuming_a_recording_run_over_a_lost_index_names_it_and_deletes_nothing(tiny, capsys):
    path = train(tiny(record={"keep": "all"}), crash_after=250)
    data = path / "dataset"
    before = recorded(data)
    assert before
    (data / "index.log").write_bytes(b"")
    code, words = said(capsys, "train", "--resume", path)
    assert code == 2
    assert f"roboloop dataset repair {data}" in words
    assert holds_all(data, before)
    assert said(capsys, "dataset", "repair", data)[0] == 0
    assert holds_all(data, before)
    assert said(capsys, "train", "--resume", path)[0] == 0
    assert len(Dataset.open(data)) > len(before)
