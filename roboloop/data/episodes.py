"""What a dataset is made of: whole episodes as columns, what is known of each one, and the schema they all share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.rng import stream
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, EnvSpec
from roboloop.data import checks
from roboloop.data.codec import CODEC, check_codec

FORMAT, OLDEST = 2, 1
"""Of datasets: raised where what a schema says changes; all from OLDEST on are read. 2: the environment's section in
``source`` has the keys of its own suite alone."""
FRAMES_PER_CHUNK, NUMBERS_PER_CHUNK = 16, 256
"""Observations that are compressed together: a window of 30 pictures touches two chunks, small vectors pack better in
more rows."""


class Episode(NamedTuple):
    """Columns of one whole episode of T steps."""

    obs: Array  # [T + 1, ...]; the last is the true final observation
    action: Array  # [T, A]
    reward: Array  # [T] what the algorithm saw
    raw_reward: Array  # [T] the env's own objective
    terminated: Array  # [T]
    truncated: Array  # [T]
    log_prob: Array  # [T] of the action under the policy that took it
    value: Array  # [T] of obs under that policy
    version: Array  # [T] of that policy


COLUMNS: dict[str, np.dtype[Any]] = {
    "action": np.dtype("<f4"),
    "reward": np.dtype("<f4"),
    "raw_reward": np.dtype("<f4"),
    "terminated": np.dtype(bool),
    "truncated": np.dtype(bool),
    "log_prob": np.dtype("<f4"),
    "value": np.dtype("<f4"),
    "version": np.dtype("<i8"),
}
"""Everything but the observations, in the order in which it is stored."""
_COLUMN_BYTES = sum(dtype.itemsize for dtype in COLUMNS.values())
"""Of a step with one action column."""


class Facts(NamedTuple):
    """What the index knows of one episode."""

    env: int
    """Stream it came from."""
    episode: int
    """Number within its stream."""
    length: int
    episode_return: float
    """Sum of the raw rewards."""
    shaped_return: float
    success: float
    """NaN where the env does not say."""
    version_first: int
    version_last: int
    step: int
    """Environment steps of the run at its end."""
    task: str
    segment: int
    """Grows with every resume of the run."""
    key: float
    """A uniform draw, for retention."""

    def to_data(self) -> dict[str, Any]:
        """Return JSON values; NaN is null."""
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in self._asdict().items()
        }
        return {n: None if isinstance(v, float) and math.isnan(v) else v for n, v in plain.items()}

    @classmethod
    def from_data(cls, data: Any) -> Facts:
        """Return what ``to_data`` described; anything else is a ValueError."""
        values = checks.mapping(data)
        if values.keys() != _FACTS.keys():
            raise ValueError(f"facts {sorted(map(str, values))[:20]} are not {sorted(_FACTS)}")
        return cls(**{name: check(values[name]) for name, check in _FACTS.items()})


def _count(value: Any) -> int:
    return checks.integer(value, -checks.LARGEST)


def _length(value: Any) -> int:
    return checks.integer(value, 1, _MOST_STEPS)


_MOST_STEPS = 1 << 40
_FACTS: dict[str, Callable[[Any], Any]] = {
    "env": _count, "episode": _count, "length": _length, "episode_return": checks.real, "shaped_return": checks.real,
    "success": checks.real, "version_first": _count, "version_last": _count, "step": _count, "task": checks.text,
    "segment": _count, "key": checks.real,
}  # fmt: skip


def facts_of(
    episode: Episode, env: int, number: int, step: int, task: str, seed: int = 0, success: float = math.nan
) -> Facts:
    """Return what can be said of an episode that no recorder saw; a reward that is not finite is a DataError."""
    raw, shaped = (float(rewards.sum(dtype=np.float64)) for rewards in (episode.raw_reward, episode.reward))
    if not math.isfinite(raw + shaped):
        raise DataError(f"episode {number} of stream {env} has a reward that is not finite")
    versions = int(episode.version[0]), int(episode.version[-1])
    return Facts(
        env=env, episode=number, length=len(episode.reward), episode_return=raw, shaped_return=shaped, success=success,
        version_first=versions[0], version_last=versions[1], step=step, task=task, segment=0,
        key=retention_key(seed, env, number),
    )  # fmt: skip


def retention_key(seed: int, env: int, number: int) -> float:
    """Return the draw of an episode; one that is rolled back and comes again has the same, for it has the same name."""
    return float(stream(seed, "record", env, number).random())


@dataclass(frozen=True)
class Schema:
    """What all episodes of a dataset have in common."""

    env_id: str
    spec: EnvSpec
    codec: str
    chunk_rows: int
    source: dict[str, Any] = field(default_factory=dict)
    """Where the data comes from (config, run, ...): kept for the reader, never compared."""

    @property
    def task(self) -> str:
        """The task that episodes without a task of their own are of."""
        return str(self.spec.protocol.get("task", self.env_id))

    def task_of(self, env: int) -> str:
        """Return the task of an environment's episodes."""
        tasks = self.spec.own_tasks or (self.task,)
        return tasks[env % len(tasks)]

    def __post_init__(self) -> None:
        check_codec(self.codec)
        if self.chunk_rows < 1:
            raise DataError(f"a dataset needs at least one row per chunk, not {self.chunk_rows}")

    @classmethod
    def of(cls, env_id: str, spec: EnvSpec, source: dict[str, Any] | None = None) -> Schema:
        """Return the schema that suits an environment: the codec, and chunks after the size of its observations."""
        has_pictures = row_bytes(spec) > 4096
        rows = FRAMES_PER_CHUNK if has_pictures else NUMBERS_PER_CHUNK
        return cls(env_id, spec, CODEC, rows, source or {})

    def to_data(self) -> dict[str, Any]:
        """Return plain data that JSON can carry."""
        return {"format": FORMAT, **vars(self), "spec": spec_to_data(self.spec)}

    @classmethod
    def from_data(cls, data: Any) -> Schema:
        """Return what ``to_data`` described; another format is a DataError."""
        version = data.get("format") if isinstance(data, dict) else None
        if version not in range(OLDEST, FORMAT + 1):
            raise DataError(f"dataset format {version!r} is none of {OLDEST} to {FORMAT}, which this version reads")
        try:
            spec = spec_from_data(checks.spec_data(data["spec"]))
            checks.check_chunk(data["chunk_rows"], row_bytes(spec))
            names = {name: checks.text(data[name]) for name in ("env_id", "codec")}
            source = checks.mapping(data["source"])
            checks.mapping(source.get("env", {}))
            return cls(spec=spec, chunk_rows=data["chunk_rows"], source=source, **names)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the schema is damaged: {type(error).__name__} {error}") from None

    def difference(self, other: Schema) -> str:
        """Say in which way the episodes of two schemas do not fit into one dataset; empty if they do."""
        for name in ("env_id", "codec", "chunk_rows", "spec"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if name != "spec":
                return f"{name} {mine!r} is not {theirs!r}"
            part = next(f.name for f in dataclasses.fields(mine) if getattr(mine, f.name) != getattr(theirs, f.name))
            return f"spec.{part} {getattr(mine, part)!r} is not {getattr(theirs, part)!r}"
        return ""

    def shape(self, name: str, length: int) -> tuple[int, ...]:
        """Return the shape of a column of an episode."""
        if name == "obs":
            return (length + 1, *self.spec.obs_shape)
        return (length, self.spec.action_dim) if name == "action" else (length,)

    def num_bytes(self, length: int) -> int:
        """Return the bytes of an episode when it is decoded."""
        per_step = 4 * (self.spec.action_dim - 1) + _COLUMN_BYTES
        return length * per_step + (length + 1) * row_bytes(self.spec)

    def num_chunks(self, length: int) -> int:
        """Return in how many chunks the observations of an episode are stored."""
        return -(-(length + 1) // self.chunk_rows)


def row_bytes(spec: EnvSpec) -> int:
    """Return the bytes of one observation."""
    return int(spec.obs_dtype.itemsize * math.prod(spec.obs_shape))


def check_episode(episode: Episode, facts: Facts, schema: Schema) -> None:
    """Refuse what is not one whole episode of the schema."""
    length = len(episode.reward)
    if length < 1 or facts.length != length:
        raise DataError(f"an episode of {length} steps is said to have {facts.length}")
    for name, column in episode._asdict().items():
        dtype = schema.spec.obs_dtype if name == "obs" else COLUMNS[name]
        shape = schema.shape(name, length)
        if column.dtype != dtype or column.shape != shape:
            expected = f"{dtype} {list(shape)}"
            raise DataError(f"episode column {name!r} is {column.dtype} {list(column.shape)}, expected {expected}")
    fault = end_fault(episode)
    if fault:
        raise DataError(f"episode {facts.episode} of stream {facts.env} {fault}")


def end_fault(episode: Episode) -> str:
    """Say what is wrong with where an episode ends; empty if nothing is."""
    ended = episode.terminated | episode.truncated
    if ended[:-1].any():
        return f"ends at step {int(ended.argmax())} of {len(ended)}"
    return "" if ended[-1] else "has no end"


def return_fault(episode: Episode, facts: Facts) -> str:
    """Say whether the return on record is not the sum of the raw rewards; empty if it is."""
    total = float(episode.raw_reward.sum(dtype=np.float64))
    # rewards are stored as float32, and who summed them may have done so in float32 as well
    slack = 1e-4 * max(1.0, float(np.abs(episode.raw_reward).sum(dtype=np.float64)))
    same = abs(total - facts.episode_return) <= slack or (math.isnan(total) and math.isnan(facts.episode_return))
    return "" if same else f"has return {facts.episode_return:g} on record, its rewards sum to {total:g}"
