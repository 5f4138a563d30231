"""D4RL's flat arrays, in an HDF5 file or an npz: all steps one after another, episodes end by terminals or timeouts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.fields import FieldPart, part, parts_of
from roboloop.core.files import parse_json
from roboloop.core.types import Array, EnvSpec
from roboloop.data.checks import check_memory
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import COLUMNS, Episode, Facts, Schema, facts_of
from roboloop.envs import EnvConfig, make
from roboloop.exchange.source import EpisodeFile, join
from roboloop.exchange.strangers import FAULTS, check_plain, hdf5_arrays, npz_arrays, num_bytes, reason, size_of

OBS, NEXT_OBS, ACTION = "observations", "next_observations", "actions"
REWARD, TERMINALS, TIMEOUTS = "rewards", "terminals", "timeouts"
INFOS = {
    "reward": "infos/learned_rewards",
    "log_prob": "infos/action_log_probs",
    "value": "infos/values",
    "version": "infos/policy_versions",
}
"""Columns of ours that the format has no array for; D4RL's own files have the log-probabilities by this name."""
SCHEMA, EPISODES = "metadata/roboloop", "metadata/episodes"
"""JSON as bytes: the schema, and the facts of each episode."""
_CHUNK_BYTES = 1 << 18
_TOLERANCE = 1e-4

Arrays: TypeAlias = Mapping[str, Any]
"""By name: numpy arrays, or what HDF5 has in their place."""
Allocate: TypeAlias = Callable[[str, tuple[int, ...], Any], Any]


def write_hdf5(data: Dataset, target: Path) -> None:
    """Write an HDF5 file, episode by episode."""
    import h5py

    with h5py.File(target, "w") as file:

        def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
            row_bytes = max(1, np.dtype(dtype).itemsize * int(np.prod(shape[1:])))
            chunks = (max(1, min(shape[0], _CHUNK_BYTES // row_bytes)), *(max(1, n) for n in shape[1:]))
            packed = {"chunks": chunks, "compression": "gzip", "compression_opts": 1, "shuffle": True}
            return file.create_dataset(name, shape, dtype, **packed)

        _fill(data, allocate)


def write_npz(data: Dataset, target: Path) -> None:
    """Write an npz file; it is all in memory at once."""
    arrays: dict[str, Any] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        arrays[name] = np.empty(shape, dtype)
        return arrays[name]

    _fill(data, allocate)
    with open(target, "wb") as file:  # given a name, numpy would add a suffix to it
        np.savez_compressed(file, **arrays)


def _fill(data: Dataset, allocate: Allocate) -> None:
    """Copy all episodes into arrays of as many rows as there are steps."""
    steps, spec = data.num_steps, data.schema.spec
    facts = [json.dumps(data.entry(row).facts.to_data()).encode() for row in range(len(data))]
    for name, texts in ((SCHEMA, [json.dumps(data.schema.to_data()).encode()]), (EPISODES, facts)):
        table = np.array(texts)
        allocate(name, table.shape, table.dtype)[...] = table
    out: dict[str, Any] = {
        name: allocate(name, (steps, *shape), dtype) for name, (dtype, shape) in _layout(spec).items()
    }
    begin = 0
    for row in range(len(data)):
        episode = data.episode(row)
        end = begin + len(episode.reward)
        for name, values in _arrays_of(episode, spec):
            out[name][begin:end] = values
        begin = end


def _layout(spec: EnvSpec) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return dtype and shape of a row of each array."""
    one: tuple[int, ...] = ()
    obs = {
        _obs_name(whole, name): (about.dtype, about.shape)
        for whole in (OBS, NEXT_OBS)
        for name, about in parts_of(spec).items()
    }
    action = np.int64 if _is_all_choices(spec) else np.float32, one if _is_one_choice(spec) else (spec.action_dim,)
    return {
        **obs, ACTION: action, REWARD: (np.float32, one), TERMINALS: (bool, one),
        TIMEOUTS: (bool, one), **{array: (COLUMNS[column], one) for column, array in INFOS.items()},
    }  # fmt: skip


def _arrays_of(episode: Episode, spec: EnvSpec) -> Iterator[tuple[str, Array]]:
    for name in parts_of(spec):
        obs = part(episode.obs, name)
        yield _obs_name(OBS, name), obs[:-1]
        yield _obs_name(NEXT_OBS, name), obs[1:]
    yield ACTION, episode.action[:, 0] if _is_one_choice(spec) else episode.action
    yield from ((REWARD, episode.raw_reward), (TERMINALS, episode.terminated), (TIMEOUTS, episode.truncated))
    yield from ((array, getattr(episode, column)) for column, array in INFOS.items())


def _obs_name(whole: str, name: str) -> str:
    return f"{whole}/{name}" if name else whole


def _follow(after: Array, obs: Array) -> bool:
    if obs.dtype.kind != "f":
        return np.array_equal(after, obs)
    return np.allclose(after, obs, _TOLERANCE, _TOLERANCE, equal_nan=True)  # some files were rounded once


def _is_all_choices(spec: EnvSpec) -> bool:
    return bool(spec.action_choices) and all(spec.action_choices)


def _is_one_choice(spec: EnvSpec) -> bool:
    return _is_all_choices(spec) and spec.action_dim == 1


@contextmanager
def read_hdf5(path: str, env_id: str | None) -> Iterator[EpisodeFile]:
    """Open an HDF5 file; its episodes are read one by one."""
    import h5py

    size = size_of(Path(path))
    try:
        file = h5py.File(path, "r")
    except FAULTS:
        raise DataError(f"{path} is not an HDF5 file, or a damaged one") from None
    with file:
        try:
            source = _source(path, hdf5_arrays(file, Path(path), size), env_id)
        except FAULTS as error:
            raise DataError(f"{path} is damaged: {reason(error)}") from None
        yield source


@contextmanager
def read_npz(path: str, env_id: str | None) -> Iterator[EpisodeFile]:
    """Open an npz file; it is all in memory at once."""
    try:
        arrays = npz_arrays(Path(path))
    except (*FAULTS, MemoryError) as error:  # the latter of brackets in a header
        raise DataError(f"{path} is not an npz file of plain arrays: {reason(error)}") from None
    yield _source(path, arrays, env_id)


def _source(path: str, arrays: Arrays, env_id: str | None) -> EpisodeFile:
    schema, left_out = _schema(path, arrays, env_id), Counter[str]()
    parts = parts_of(schema.spec)
    wanted = [*(_obs_name(OBS, name) for name in parts), ACTION, REWARD, TERMINALS, TIMEOUTS]
    nexts = [_obs_name(NEXT_OBS, name) for name in parts]
    for name in wanted:
        if name not in arrays:
            raise DataError(f"{path} has no array {name!r}")
    for name in [*wanted, *nexts, *INFOS.values(), EPISODES]:
        if name in arrays:
            check_plain(path, name, arrays[name].dtype)
    steps = _rows(arrays[REWARD])
    for name in [*wanted, *nexts, *INFOS.values()]:
        if name in arrays and _rows(arrays[name]) != steps:
            raise DataError(f"{path} has {_rows(arrays[name])} rows of {name!r}, but {steps} of {REWARD!r}")
    _check_rows(path, arrays, schema)
    flat = _Flat(path, arrays, schema.spec, all(name in arrays for name in nexts))
    return EpisodeFile(schema, flat.episodes(schema, left_out), left_out)


def _rows(array: Any) -> int:
    return int(array.shape[0]) if array.shape else 0


def _schema(path: str, arrays: Arrays, env_id: str | None) -> Schema:
    if SCHEMA in arrays:
        return Schema.from_data(_json(path, arrays[SCHEMA], 0))
    if env_id is None:
        raise ConfigError(f"{path} does not say which environment it is of: give --env ID")
    env = make(EnvConfig(id=env_id))
    try:
        return Schema.of(env_id, env.spec, {"imported_from": Path(path).name})
    finally:
        env.close()


def _json(path: str, array: Any, row: int) -> Any:
    try:
        return parse_json(bytes(array[row]), path)
    except (*FAULTS, DataError):
        raise DataError(f"{path} is damaged: what it says of its episodes is not JSON") from None


def _check_rows(path: str, arrays: Arrays, schema: Schema) -> None:
    """Refuse rows that do not have the shapes of the environment."""
    spec = schema.spec
    expected = {_obs_name(OBS, name): about.shape for name, about in parts_of(spec).items()}
    expected |= {name: () for name in (REWARD, *INFOS.values()) if name in arrays}
    expected |= {ACTION: () if _is_one_choice(spec) and len(arrays[ACTION].shape) == 1 else (spec.action_dim,)}
    for name, shape in expected.items():
        found = tuple(arrays[name].shape[1:])
        if found != shape and (found, shape) != ((1,), ()):  # a column of one is as good as none
            raise DataError(f"{path} has {name} of shape {list(found)}, not {list(shape)} as {schema.env_id}")


class _Flat:
    """The arrays of a file, episode by episode; only the two flags of each step are held for all of them."""

    def __init__(self, path: str, arrays: Arrays, spec: EnvSpec, has_next: bool) -> None:
        self._path, self._arrays, self._spec, self._has_next = path, arrays, spec, has_next
        self._parts = parts_of(spec)
        self._terminals, self._timeouts = self._flags(TERMINALS), self._flags(TIMEOUTS)

    def _flags(self, name: str) -> Array:
        check_memory(2 * num_bytes(self._arrays[name]), self._path)
        try:
            values = np.asarray(self._arrays[name][...]).reshape(-1)
        except FAULTS as error:
            raise DataError(f"{self._path} cannot be read: {name}: {reason(error)}") from None
        if len(values) != _rows(self._arrays[name]) or not np.isin(values, (0, 1)).all():  # NaN is neither
            raise DataError(f"{self._path} has {name!r} that are neither true nor false")
        return values.astype(bool)

    def episodes(self, schema: Schema, left_out: Counter[str]) -> Iterator[tuple[Episode, Facts]]:
        ends = np.flatnonzero(self._terminals | self._timeouts).tolist()
        known = self._arrays.get(EPISODES)
        if known is not None and _rows(known) != len(ends):
            raise DataError(f"{self._path} has {len(ends)} episodes, but says something of {_rows(known)}")
        begin, taken, task = 0, 0, schema.task
        for number, last in enumerate(ends):
            episode = self._episode(begin, last + 1, left_out)
            begin = last + 1
            if episode is None:
                continue
            taken += len(episode.reward)
            if known is None:
                yield episode, facts_of(episode, 0, number, taken, task)
            else:
                yield episode, self._known_facts(known, number)
        if begin < len(self._terminals):
            left_out["steps behind the last end of an episode"] += len(self._terminals) - begin

    def _known_facts(self, known: Any, number: int) -> Facts:
        try:
            return Facts.from_data(_json(self._path, known, number))
        except ValueError:
            raise DataError(f"{self._path} is damaged: what it says of episode {number} is not whole") from None

    def _episode(self, begin: int, end: int, left_out: Counter[str]) -> Episode | None:
        obs = {name: self._take(_obs_name(OBS, name), begin, end, about) for name, about in self._parts.items()}
        truncated = self._timeouts[begin:end]
        if self._has_next:
            final = self._final(begin, end, obs)
        elif self._terminals[end - 1]:
            # nothing is bootstrapped from it, so that any observation will do where the true one is not known
            final = {name: values[-1:] for name, values in obs.items()}
            left_out["episodes whose last observation, after a termination, repeats the one before"] += 1
        else:
            # the last observation that is known becomes the final one
            end -= 1
            obs, final = ({n: v[cut] for n, v in obs.items()} for cut in (slice(None, -1), slice(-1, None)))
            truncated = np.concatenate([truncated[:-2], np.ones(min(1, end - begin), bool)])
            left_out["last steps of truncated episodes, whose successor is not known"] += 1
            if end == begin:
                return None
        columns = {name: self._column(name, begin, end) for name in COLUMNS if name not in ("terminated", "truncated")}
        whole = {name: np.concatenate([obs[name], final[name]]) for name in obs}
        return Episode(
            obs=join(whole, self._spec), terminated=self._terminals[begin:end], truncated=truncated, **columns
        )

    def _final(self, begin: int, end: int, obs: dict[str, Array]) -> dict[str, Array]:
        """Return the true last observation; next_observations that are not those that follow are a DataError."""
        final = {}
        for name, about in self._parts.items():
            after = self._take(_obs_name(NEXT_OBS, name), begin, end, about)
            if not _follow(after[:-1], obs[name][1:]):
                what = f"{NEXT_OBS!r} that are not the observations of the next rows"
                raise DataError(f"{self._path} has {what} (rows {begin} to {end}): are its steps shuffled?")
            final[name] = after[-1:]
        return final

    def _take(self, name: str, begin: int, end: int, about: FieldPart) -> Array:
        return self._read(name, begin, end, about.dtype).reshape(end - begin, *about.shape)

    def _read(self, name: str, begin: int, end: int, dtype: Any) -> Array:
        array = self._arrays[name]
        check_memory(2 * num_bytes(array) * (end - begin) // max(1, _rows(array)), self._path)
        try:
            found = np.asarray(array[begin:end])
            if np.dtype(dtype).kind in "biu" and found.dtype.kind == "f" and not np.isfinite(found).all():
                raise ValueError("they are not finite")
            with np.errstate(over="ignore"):
                values: Array = found.astype(dtype)
        except FAULTS as error:
            raise DataError(f"{self._path} cannot be read: {name}, rows {begin} to {end}: {reason(error)}") from None
        return values

    def _column(self, name: str, begin: int, end: int) -> Array:
        """Return a column of ours: an array of the format, one that we added to it, or zeros."""
        array = {"action": ACTION, "raw_reward": REWARD}.get(name) or INFOS[name]
        if array not in self._arrays:
            if name != "reward":
                return np.zeros(end - begin, COLUMNS[name])
            array = REWARD  # nothing was shaped
        values = self._read(array, begin, end, COLUMNS[name])
        return values.reshape(end - begin, -1) if name == "action" else values.reshape(end - begin)
