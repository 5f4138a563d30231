"""LeRobot's layout v3.0, read back with pyarrow alone: every value of every step, and what the metadata say of them."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from tests.data.kit import episode_of, fill, schema_of
from tests.exchange.kit import fill_choices

pytest.importorskip("pyarrow")
import pyarrow.parquet as pq

lerobot = pytest.importorskip("roboloop.exchange.lerobot")


def export(tmp_path, *flags):
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "out"), "--format", "lerobot", *flags]) == 0
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    return Dataset.open(tmp_path / "a"), tmp_path / "out", info


def rows_of(out, info, episode):
    """Return the rows of an episode as columns, found by the metadata alone."""
    about = episodes_of(out)[episode]
    place = {"chunk_index": about["data/chunk_index"], "file_index": about["data/file_index"]}
    table = pq.read_table(out / info["data_path"].format(**place))
    index = table["index"].to_numpy()
    keep = np.flatnonzero((index >= about["dataset_from_index"]) & (index < about["dataset_to_index"]))
    columns = table.take(keep).to_pydict()
    return {name: pixels(values) if info["features"][name]["dtype"] == "image" else np.array(values)
            for name, values in columns.items()}  # fmt: skip


def pixels(values):
    return np.stack([np.array(Image.open(io.BytesIO(value["bytes"]), formats=["PNG"])) for value in values])


def episodes_of(out):
    return pq.read_table(out / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()


@pytest.mark.parametrize("kind", ["numbers", "pictures", "records", "grey", "grid"])
def test_every_value_is_in_the_parquet_files(tmp_path, kind, monkeypatch):
    fill(tmp_path / "a", range(9), kind=kind)
    monkeypatch.setattr(lerobot, "FILE_MB", 0)  # every episode in a file of its own
    monkeypatch.setattr(lerobot, "CHUNK_FILES", 4)
    data, out, info = export(tmp_path, "--fps", "20")
    assert sorted(path.name for path in (out / "data").iterdir()) == ["chunk-000", "chunk-001", "chunk-002"]
    begin, tasks = 0, pq.read_table(out / "meta" / "tasks.parquet").to_pydict()
    for row in range(9):
        episode, found, steps = data.episode(row), rows_of(out, info, row), int(data.table["length"][row])
        wanted = {
            "action": episode.action, "next.reward": episode.raw_reward, "next.truncated": episode.truncated,
            "next.done": np.arange(steps) == steps - 1, "episode_index": np.full(steps, row),
            "frame_index": np.arange(steps), "index": np.arange(begin, begin + steps),
            "timestamp": np.arange(steps, dtype=np.float32) / np.float32(20),
        }  # fmt: skip
        obs = episode.obs[:-1]
        match kind:
            case "pictures":
                wanted["observation.image"] = obs.transpose(0, 2, 3, 1)
            case "grey":
                wanted["observation.image"] = obs[:, 0]
            case "records":
                wanted["observation.images.image"] = obs["image"].transpose(0, 2, 3, 1)
                wanted["observation.state"], wanted["observation.action_mask"] = obs["vector"], obs["action_mask"]
            case _:
                wanted["observation.state"] = obs.reshape(steps, -1).astype(np.float32)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name].astype(values.dtype), values, err_msg=name)
        assert {tasks["__index_level_0__"][i] for i in found["task_index"]} == {data.table["task"][row]}
        assert found.keys() == info["features"].keys() == {*wanted, "task_index"}
        begin += steps


def test_the_metadata_say_what_is_there(tmp_path):
    fill(tmp_path / "a", range(1, 9, 3))
    with StoreWriter(tmp_path / "a", schema_of()) as writer:
        episode, facts = episode_of(2, 6)
        writer.append(episode, facts._replace(success=1.0))
    data, out, info = export(tmp_path)
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["fps"]) == (4, data.num_steps, 30)
    assert info["splits"] == {"train": "0:4"}
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": None}
    assert [about["length"] for about in episodes_of(out)] == data.table["length"].tolist()
    assert [about["tasks"] for about in episodes_of(out)] == [[task] for task in data.table["task"]]
    last = rows_of(out, info, 3)
    assert last["next.success"].tolist() == [False] * 5 + [True]  # known of all episodes, so it is a column
    assert not rows_of(out, info, 0)["next.success"].any()


def test_the_statistics_are_those_of_all_steps(tmp_path):
    fill(tmp_path / "a", range(6), kind="pictures")
    data, out, _ = export(tmp_path)
    stats = json.loads((out / "meta" / "stats.json").read_text())
    episodes = [data.episode(row) for row in range(6)]
    actions = np.concatenate([episode.action for episode in episodes]).astype(np.float64)
    frames = np.concatenate([episode.obs[:-1] for episode in episodes]) / 255
    for kind in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(stats["action"][kind], getattr(actions, kind)(0))
        wanted = getattr(frames, kind)(axis=(0, 2, 3)).reshape(3, 1, 1)
        np.testing.assert_allclose(stats["observation.image"][kind], wanted)
    assert stats["action"]["count"] == [len(actions)]
    of_one = episodes_of(out)[2]
    np.testing.assert_allclose(of_one["stats/action/mean"], episodes[2].action.mean(0, dtype=np.float64))


def test_a_choice_is_its_number(tmp_path):
    fill_choices(tmp_path / "a", "one choice", range(3))
    data, out, info = export(tmp_path)
    assert rows_of(out, info, 1)["action"].tolist() == data.episode(1).action[:, 0].tolist()


def test_pictures_that_are_no_pictures_are_refused(tmp_path, capsys):
    spec = schema_of("pictures").spec.__class__((12, 4, 4), np.dtype(np.uint8), (-1.0, -1.0), (1.0, 1.0), 100)
    with StoreWriter(tmp_path / "a", schema_of(spec=spec)) as writer:
        episode, facts = episode_of(0, 2)
        writer.append(episode._replace(obs=np.zeros((3, 12, 4, 4), np.uint8)), facts)
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "out"), "--format", "lerobot"]) == 2
    assert "pictures of 12 channels" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
