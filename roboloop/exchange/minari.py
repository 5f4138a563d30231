"""Minari datasets, written and read by Minari itself (HDF5, pictures lossless)."""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage
from minari.storage.datasets_root_dir import get_dataset_path

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.fields import WHOLE, FieldPart, part, parts_of
from roboloop.core.files import is_directory, is_regular, parse_json, read_json
from roboloop.core.types import Array, EnvSpec
from roboloop.data.checks import check_memory, mapping, text
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import COLUMNS, Episode, Facts, Schema, facts_of
from roboloop.envs.env import Task
from roboloop.envs.registry import split
from roboloop.envs.spaces import Space, columns, encode, observations
from roboloop.exchange.source import EpisodeFile, join
from roboloop.exchange.strangers import FAULTS, hdf5_arrays, num_bytes, reason, size_of

OURS = "roboloop"
"""Where schema and facts are kept, in the dataset's metadata and in that of each episode."""
_INFOS = {"reward": "learned_reward", "log_prob": "log_prob", "value": "value", "version": "policy_version"}
"""Columns of ours that Minari has no array for."""
_MOST_METADATA = 1 << 28
"""It holds the bounds of every pixel as text."""


def write(data: Dataset, target: Path) -> None:
    """Write a dataset directory whose name is its id; one episode is in memory at a time."""
    try:
        parse_dataset_id(target.name)
    except (ValueError, TypeError):
        raise ConfigError(f"a Minari dataset is called NAME-v0, NAME-v1, ..., not {target.name!r}") from None
    spec = data.schema.spec
    target.mkdir()
    storage = MinariStorage.new(  # of a relative path, Minari would write to it below itself
        (target / "data").absolute(),
        _obs_space(spec),
        action_space(spec),
        _env_spec(data.schema),
        "hdf5",
        jpeg_encoding=False,
    )
    rows = range(len(data))
    storage.update_episodes(_buffer(data.episode(row), spec) for row in rows)
    storage.update_episode_metadata(
        ({f"{OURS}/facts": json.dumps(data.entry(row).facts.to_data())} for row in rows), rows
    )
    about = {"dataset_id": target.name, "minari_version": minari.__version__, OURS: json.dumps(data.schema.to_data())}
    storage.update_metadata(about | {"algorithm_name": str(data.schema.source.get("algo", ""))})


def _obs_space(spec: EnvSpec) -> Space:
    inner = {name: _box(about) for name, about in parts_of(spec).items()}
    return inner[WHOLE] if WHOLE in inner else spaces.Dict(inner)


def _box(about: FieldPart) -> Space:
    if about.dtype == bool:
        return spaces.MultiBinary(about.shape)
    if about.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, about.shape, about.dtype.type)
    limits = np.iinfo(about.dtype)
    return spaces.Box(limits.min, limits.max, about.shape, about.dtype.type)


def action_space(spec: EnvSpec) -> Space:
    """Return a space of which ``columns`` gives the actions of the spec: one choice, several, numbers, or a tuple."""
    found = [space for space, _ in _action_parts(spec)]
    return found[0] if len(found) == 1 else spaces.Tuple(found)


def _action_parts(spec: EnvSpec) -> Iterator[tuple[Space, slice]]:
    """Yield neighbouring columns of one kind as a space."""
    choices = spec.action_choices or (0,) * spec.action_dim
    begin = 0
    for is_choice, group in groupby(choices, bool):
        counts = list(group)
        span = slice(begin, begin + len(counts))
        begin = span.stop
        if is_choice:
            yield (spaces.Discrete(counts[0]) if len(counts) == 1 else spaces.MultiDiscrete(counts)), span
        else:
            low, high = (np.asarray(bound[span], np.float32) for bound in (spec.action_low, spec.action_high))
            yield spaces.Box(low, high, dtype=np.float32), span


def _env_spec(schema: Schema) -> Any:
    """Return Gymnasium's spec where its environment gives the same steps as ours did."""
    task = schema.env_id.removeprefix("gym/")
    is_plain = schema.spec.protocol.get("action_repeat", 1) == 1 and not task.startswith("ALE/")
    if not is_plain or task not in gymnasium.registry:
        return None
    spec = copy.deepcopy(gymnasium.spec(task))
    spec.max_episode_steps = schema.spec.max_episode_steps
    return spec


def _buffer(episode: Episode, spec: EnvSpec) -> EpisodeBuffer:
    obs = {name: _plain(part(episode.obs, name)) for name in parts_of(spec)}
    actions = []
    for space, span in _action_parts(spec):
        values = episode.action[:, span]
        values = values if isinstance(space, spaces.Box) else values.astype(np.int64)
        actions.append(values[:, 0] if isinstance(space, spaces.Discrete) else values)
    infos = {}
    for name, info in _INFOS.items():
        values = getattr(episode, name)
        infos[info] = np.concatenate([np.zeros(1, values.dtype), values])  # the first info is that of the reset
    return EpisodeBuffer(
        observations=obs.get(WHOLE, obs), actions=actions[0] if len(actions) == 1 else tuple(actions),
        rewards=episode.raw_reward, terminations=episode.terminated, truncations=episode.truncated, infos=infos,
    )  # fmt: skip


def _plain(values: Array) -> Array:
    return values.astype(np.int8) if values.dtype == bool else np.ascontiguousarray(values)


@contextmanager
def read(path: str, env_id: str | None) -> Iterator[EpisodeFile]:
    """Open a dataset's directory, or one of Minari's own by its id; its episodes are read one by one."""
    try:
        dataset = _open(path)
        ours = dataset.storage.metadata.get(OURS)
        schema = Schema.from_data(parse_json(ours.encode(), OURS)) if ours else _foreign_schema(path, dataset, env_id)
    except FAULTS as error:
        raise DataError(f"{path} is not a Minari dataset that can be read: {reason(error)}") from None
    left_out: Counter[str] = Counter()
    yield EpisodeFile(schema, _episodes(path, dataset, schema, bool(ours), left_out), left_out)


def _open(path: str) -> minari.MinariDataset:
    for directory in (Path(path) / "data", Path(path)):
        if os.path.lexists(directory / METADATA_FILE_NAME):
            _check(directory)
            return minari.MinariDataset(directory)
    if os.path.lexists(path):
        raise ValueError(f"it holds no {METADATA_FILE_NAME}")
    directory = get_dataset_path(path) / "data"
    if directory.is_dir():
        _check(directory)
    return minari.load_dataset(path)


def _check(directory: Path) -> None:
    """Refuse what would lead Minari elsewhere: links, other files, and the code of environments."""
    for file in directory.rglob("*"):
        if not is_directory(file) and not is_regular(file):
            raise DataError(f"{file} is not a regular file: it is not followed")
    metadata = read_json(directory / METADATA_FILE_NAME, _MOST_METADATA)
    for name in ("observation_space", "action_space"):
        # without it Minari would make the environment that the file describes, and run its code
        parse_json(text(mapping(metadata).get(name), _MOST_METADATA).encode(), name)
    for name in ("env_spec", "eval_env_spec"):
        if metadata.get(name) is not None:
            parse_json(text(metadata[name], _MOST_METADATA).encode(), name)
    for hdf5 in directory.glob("*.hdf5"):
        with h5py.File(hdf5, "r") as file:
            arrays = hdf5_arrays(file, hdf5, size_of(hdf5))
            check_memory(max(map(num_bytes, arrays.values()), default=0), str(hdf5))


def _foreign_schema(path: str, dataset: minari.MinariDataset, env_id: str | None) -> Schema:
    made_by = dataset.env_spec
    if env_id is None and made_by is None:
        raise ConfigError(f"{path} does not say which environment it is of: give --env ID")
    name = env_id or f"gym/{made_by.id}"
    low, high, choices = columns(dataset.action_space)
    seen = observations(dataset.observation_space, choices)
    longest = max((int(m["total_steps"]) for m in _metadata(dataset)), default=1)
    task = Task(
        obs_shape=seen.shape, obs_dtype=seen.dtype, action_low=low, action_high=high,
        horizon=(made_by.max_episode_steps if made_by else None) or longest,
        protocol={"suite": f"minari {dataset.minari_version}", "task": split(name)[1]}, action_choices=choices,
    )  # fmt: skip
    return Schema.of(name, task.spec(), {"imported_from": dataset.id})


def _metadata(dataset: minari.MinariDataset) -> Iterator[dict[str, Any]]:
    yield from dataset.storage.get_episode_metadata(dataset.episode_indices)


def _episodes(
    path: str, dataset: minari.MinariDataset, schema: Schema, is_ours: bool, left_out: Counter[str]
) -> Iterator[tuple[Episode, Facts]]:
    taken = 0
    found = zip(dataset.iterate_episodes(), _metadata(dataset), strict=True)
    for number in range(len(dataset)):
        try:
            raw, about = next(found)
            episode = _episode(raw, dataset, schema, is_ours)
            known = Facts.from_data(parse_json(about[OURS]["facts"].encode(), "facts")) if is_ours else None
        except (*FAULTS, StopIteration) as error:
            raise DataError(f"{path} is damaged at episode {number}: {reason(error)}") from None
        if not (episode.terminated[-1] or episode.truncated[-1]):
            left_out["episodes without an end"] += 1
            continue
        taken += len(episode.reward)
        yield episode, known or facts_of(episode, 0, number, taken, schema.task, success=_success(raw.infos))


def _episode(raw: Any, dataset: minari.MinariDataset, schema: Schema, is_ours: bool) -> Episode:
    steps, spec, infos = len(raw.rewards), schema.spec, raw.infos or {}
    if not steps:
        raise ValueError("it has no steps")
    if is_ours:
        obs = join(
            {name: raw.observations if name == WHOLE else raw.observations[name] for name in parts_of(spec)}, spec
        )
    else:
        read_one = observations(dataset.observation_space, spec.action_choices).read
        obs = np.stack([read_one(_at(raw.observations, t), {}) for t in range(_rows(raw.observations))])
    if len(obs) != steps + 1 or _rows(raw.actions) != steps:
        raise ValueError(f"it has {steps} rewards, {_rows(raw.actions)} actions and {len(obs)} observations")
    own = {name: infos[info][1:] for name, info in _INFOS.items() if is_ours}
    whole = {
        "action": np.stack([encode(dataset.action_space, _at(raw.actions, t)) for t in range(steps)]),
        "reward": raw.rewards, "raw_reward": raw.rewards, "terminated": raw.terminations, "truncated": raw.truncations,
        "log_prob": np.zeros(steps), "value": np.zeros(steps), "version": np.zeros(steps), **own,
    }  # fmt: skip
    typed = {name: np.asarray(values).astype(COLUMNS[name]) for name, values in whole.items()}
    return Episode(obs=obs.astype(spec.obs_dtype), **typed)


def _at(tree: Any, t: int) -> Any:
    """Return one row of arrays that may be nested."""
    if isinstance(tree, Mapping):
        return {key: _at(value, t) for key, value in tree.items()}
    return tuple(_at(value, t) for value in tree) if isinstance(tree, tuple) else tree[t]


def _rows(tree: Any) -> int:
    """Return the rows of arrays that may be nested; they must agree."""
    parts = list(tree.values()) if isinstance(tree, Mapping) else list(tree) if isinstance(tree, tuple) else None
    if parts is None:
        return len(tree)
    counts = {_rows(value) for value in parts}
    if len(counts) != 1:
        raise ValueError(f"its arrays have {sorted(counts)} rows")
    return counts.pop()


def _success(infos: Mapping[str, Any] | None) -> float:
    for name in ("success", "is_success"):
        if infos and name in infos:
            return float(np.any(np.asarray(infos[name])))
    return float("nan")
