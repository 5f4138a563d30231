"""LeRobot's dataset layout v3.0, written without LeRobot: parquet with one row per step, pictures as PNG in it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.fields import WHOLE, FieldPart, part, parts_of
from roboloop.core.types import Array, EnvSpec
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Episode

VERSION = "v3.0"
FPS = 30
"""Where nothing else is said: an environment's clock is not part of a dataset of ours."""
CHUNK_FILES, FILE_MB, VIDEO_MB = 1000, 100, 200
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
_TASKS_INDEX = "__index_level_0__"
_COUNTERS = ("frame_index", "episode_index", "index", "task_index")
_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class LeRobotFeature(NamedTuple):
    """One column, as ``info.json`` describes it."""

    dtype: str
    shape: tuple[int, ...]
    names: list[str] | None = None

    @property
    def arrow(self) -> Any:
        """The parquet type."""
        if self.dtype == "image":
            return _PICTURE
        one = pa.from_numpy_dtype(np.dtype(self.dtype))
        return one if self.shape == (1,) else pa.list_(one, self.shape[0])


def write(data: Dataset, target: Path, fps: int = FPS) -> None:
    """Write a dataset directory; one episode and what is said of each of them is in memory at a time."""
    if fps < 1:
        raise ConfigError(f"--fps must be at least 1, not {fps}")
    features = _features(data)
    tasks = sorted(set(data.table["task"]))
    stats: dict[str, list[Stats]] = {name: [] for name in features}
    (target / "meta").mkdir(parents=True)
    places = []
    with _DataFiles(target, features) as files:
        begin = 0
        for row in range(len(data)):
            episode, facts = data.episode(row), data.entry(row).facts
            columns = _columns(episode, data.schema.spec)
            length = facts.length
            columns |= {
                "timestamp": np.arange(length, dtype=np.float32) / np.float32(fps), "frame_index": np.arange(length),
                "episode_index": np.full(length, row), "index": np.arange(begin, begin + length),
                "task_index": np.full(length, tasks.index(facts.task)),
                "next.success": (np.arange(length) == length - 1) & (facts.success > 0),
            }  # fmt: skip
            places.append((*files.write({name: columns[name] for name in features}), begin, begin + length))
            for name in features:
                stats[name].append(stats_of(columns[name], features[name]))
            begin += length
    _write_episodes(target, data, places, stats)
    _write_tasks(target, tasks)
    whole = {name: merged(of).to_data() for name, of in stats.items()}
    (target / "meta" / "stats.json").write_text(json.dumps(whole, indent=1))
    (target / "meta" / "info.json").write_text(json.dumps(_info(data, features, len(tasks), fps), indent=1))


def _features(data: Dataset) -> dict[str, LeRobotFeature]:
    spec, features = data.schema.spec, {}
    parts = parts_of(spec)
    for name, about in parts.items():
        if about.is_picture:
            if about.shape[0] not in (1, 3, 4):
                raise DataError(
                    f"pictures of {about.shape[0]} channels have no place in LeRobot's layout: 1, 3 or 4 have"
                )
            channels, height, width = about.shape
            features[_picture_name(name)] = LeRobotFeature(
                "image", (height, width, channels), ["height", "width", "channels"]
            )
        elif about.dtype == bool:
            features[f"observation.{name}"] = LeRobotFeature("bool", (math.prod(about.shape),))
    numbers = sum(math.prod(about.shape) for about in _numbers(parts).values())
    if numbers:
        features["observation.state"] = LeRobotFeature("float32", (numbers,))
    features["action"] = LeRobotFeature("float32", (spec.action_dim,))
    features["next.reward"] = LeRobotFeature("float32", (1,))
    features |= {name: LeRobotFeature("bool", (1,)) for name in ("next.done", "next.truncated")}
    if not np.isnan(data.table["success"]).any():
        features["next.success"] = LeRobotFeature("bool", (1,))
    return {
        **features,
        "timestamp": LeRobotFeature("float32", (1,)),
        **{n: LeRobotFeature("int64", (1,)) for n in _COUNTERS},
    }


def _picture_name(name: str) -> str:
    return "observation.image" if name == WHOLE else f"observation.images.{name}"


def _numbers(parts: dict[str, FieldPart]) -> dict[str, FieldPart]:
    """Return the parts that make up the state."""
    return {name: about for name, about in parts.items() if not about.is_picture and about.dtype != bool}


def _columns(episode: Episode, spec: EnvSpec) -> dict[str, Array]:
    """Return what an episode says itself, pictures ``[T, H, W, C]``; its last observation has no place."""
    parts, steps = parts_of(spec), len(episode.reward)
    columns: dict[str, Array] = {}
    for name, about in parts.items():
        values = part(episode.obs, name)[:-1]
        if about.is_picture:
            columns[_picture_name(name)] = values.transpose(0, 2, 3, 1)
        elif about.dtype == bool:
            columns[f"observation.{name}"] = values.reshape(steps, -1)
    flat = [part(episode.obs, name)[:-1].reshape(steps, -1).astype(np.float32) for name in _numbers(parts)]
    if flat:
        columns["observation.state"] = np.concatenate(flat, axis=1)
    return columns | {
        "action": episode.action, "next.reward": episode.raw_reward, "next.truncated": episode.truncated,
        "next.done": episode.terminated | episode.truncated,
    }  # fmt: skip


class _DataFiles:
    """Parquet files of at most some MB; an episode is one row group, and never in two files."""

    def __init__(self, root: Path, features: dict[str, LeRobotFeature]) -> None:
        self._root = root
        self._schema = pa.schema([(name, feature.arrow) for name, feature in features.items()])
        self._number = -1
        self._bytes = math.inf
        self._writer: Any = None

    def __enter__(self) -> _DataFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, columns: dict[str, Array]) -> tuple[int, int]:
        """Append an episode; return in which chunk and file."""
        table = pa.table([_arrow(columns[f.name], f.type) for f in self._schema], schema=self._schema)
        if self._bytes + table.nbytes > FILE_MB << 20:
            self.__exit__()
            self._number += 1
            self._bytes = 0
            path = self._root / _DATA.format(chunk_index=self._place[0], file_index=self._place[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, self._schema)
        self._bytes += table.nbytes
        self._writer.write_table(table)
        return self._place

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(self._number, CHUNK_FILES)


def _arrow(values: Array, kind: Any) -> Any:
    if kind == _PICTURE:
        return pa.array([{"bytes": _png(picture), "path": None} for picture in values], kind)
    if values.ndim == 1 or not pa.types.is_fixed_size_list(kind):
        return pa.array(values.reshape(len(values)), kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), kind.list_size).cast(kind)


def _png(picture: Array) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else np.ascontiguousarray(picture)).save(out, "PNG")
    return out.getvalue()


class Stats(NamedTuple):
    """Statistics of a column, per number, or per channel of pictures scaled to [0, 1]."""

    min: Array
    max: Array
    mean: Array
    std: Array
    num_rows: int

    def to_data(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**{name: getattr(self, name).tolist() for name in self._fields[:-1]}, "count": [self.num_rows]}


def stats_of(values: Array, feature: LeRobotFeature) -> Stats:
    """Return the statistics of one episode."""
    if feature.dtype == "image":
        axes, pixels = (0, 1, 2), values[..., 0].size
        mean = values.sum(axes, dtype=np.float64) / pixels
        # picture by picture: all of an episode in float64 is eight times the episode
        squares = sum((picture.astype(np.float64) ** 2).sum((0, 1)) for picture in values)
        std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
        scaled = [(x / 255.0).reshape(-1, 1, 1) for x in (values.min(axes), values.max(axes), mean, std)]
        return Stats(scaled[0], scaled[1], scaled[2], scaled[3], len(values))
    rows = values.reshape(len(values), -1).astype(np.float64)
    return Stats(rows.min(0), rows.max(0), rows.mean(0), rows.std(0), len(rows))


def merged(of: list[Stats]) -> Stats:
    """Return the statistics of several episodes together."""
    counts = np.array([s.num_rows for s in of], np.float64)
    weights = counts / counts.sum()
    mean = sum(w * s.mean for w, s in zip(weights, of, strict=True))
    variance = sum(w * (s.std**2 + (s.mean - mean) ** 2) for w, s in zip(weights, of, strict=True))
    least, most = np.min([s.min for s in of], axis=0), np.max([s.max for s in of], axis=0)
    return Stats(least, most, np.asarray(mean), np.sqrt(variance), int(counts.sum()))


def _write_episodes(
    root: Path, data: Dataset, places: list[tuple[int, int, int, int]], stats: dict[str, list[Stats]]
) -> None:
    chunk, file, begin, end = zip(*places, strict=True)
    columns: dict[str, Any] = {
        "episode_index": list(range(len(data))), "tasks": [[task] for task in data.table["task"]],
        "length": data.table["length"].tolist(), "data/chunk_index": chunk, "data/file_index": file,
        "dataset_from_index": begin, "dataset_to_index": end, "meta/episodes/chunk_index": [0] * len(data),
        "meta/episodes/file_index": [0] * len(data), **dict(_stats_columns(stats)),
    }  # fmt: skip
    path = root / _EPISODES
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)


def _stats_columns(stats: dict[str, list[Stats]]) -> Iterator[tuple[str, list[Any]]]:
    for name, of in stats.items():
        rows = [s.to_data() for s in of]
        yield from ((f"stats/{name}/{kind}", [row[kind] for row in rows]) for kind in rows[0])


def _write_tasks(root: Path, tasks: list[str]) -> None:
    """Write the table of tasks as pandas does, which LeRobot reads it with: the task is the index."""
    columns = [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
        for name, field, kind, numpy_type in (
            ("task_index", "task_index", "int64", "int64"), (None, _TASKS_INDEX, "unicode", "object"),
        )
    ]  # fmt: skip
    pandas = {"index_columns": [_TASKS_INDEX], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    table = pa.table({"task_index": list(range(len(tasks))), _TASKS_INDEX: tasks})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), root / "meta" / "tasks.parquet")


def _info(data: Dataset, features: dict[str, LeRobotFeature], num_tasks: int, fps: int) -> dict[str, Any]:
    return {
        "codebase_version": VERSION, "robot_type": data.schema.env_id, "total_episodes": len(data),
        "total_frames": data.num_steps, "total_tasks": num_tasks, "chunks_size": CHUNK_FILES,
        "data_files_size_in_mb": FILE_MB, "video_files_size_in_mb": VIDEO_MB, "fps": fps,
        "splits": {"train": f"0:{len(data)}"}, "data_path": _DATA, "video_path": None,
        "features": {name: feature._asdict() for name, feature in features.items()},
    }  # fmt: skip
