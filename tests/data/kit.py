"""Episodes to store: of numbers, of pictures, of records, random and reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.types import EnvSpec
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Episode, Facts, Schema
from roboloop.data.store import StoreWriter

NUMBERS = ((3,), np.dtype(np.float32))
PICTURES = ((3, 8, 12), np.dtype(np.uint8))
RECORDS = ((), np.dtype([("vector", np.float32, (4,)), ("image", np.uint8, (3, 8, 12)), ("action_mask", bool, (5,))]))
KINDS = {
    "numbers": NUMBERS, "pictures": PICTURES, "records": RECORDS, "grey": ((1, 5, 7), np.dtype(np.uint8)),
    "one number": ((), np.dtype(np.float64)), "bytes": ((6,), np.dtype(np.uint8)), "grid": ((2, 3), np.dtype(np.int16)),
}  # fmt: skip


def spec_of(kind: str = "numbers") -> EnvSpec:
    shape, dtype = KINDS[kind]
    return EnvSpec(shape, dtype, (-1.0, -1.0), (1.0, 1.0), 100, {"task": "toy"})


def schema_of(kind: str = "numbers", chunk_rows: int = 4, **changes: Any) -> Schema:
    spec = spec_of(kind)
    return Schema(
        **{"env_id": "toy/toy", "spec": spec, "codec": Schema.of("", spec).codec, "chunk_rows": chunk_rows, **changes}
    )


def episode_of(number: int, length: int | None = None, kind: str = "numbers") -> tuple[Episode, Facts]:
    """Return the episode of a number: equal numbers give equal bits."""
    rng = np.random.default_rng(number)
    drawn = int(rng.integers(1, 14))
    length = length or drawn
    shape, dtype = KINDS[kind]
    count = (length + 1) * int(np.prod(shape, dtype=int)) * dtype.itemsize
    obs = np.frombuffer(rng.bytes(count), np.uint8).copy().view(dtype).reshape(length + 1, *shape)
    if dtype.names and "action_mask" in dtype.names:
        obs["action_mask"] = rng.random((length + 1, 5)) < 0.5
    raw_reward = rng.standard_normal(length).astype(np.float32)
    terminated = np.zeros(length, bool)
    terminated[-1] = number % 2 == 0
    truncated = np.zeros(length, bool)
    truncated[-1] = not terminated[-1]
    floats = rng.standard_normal((3, length)).astype(np.float32)
    version = np.sort(rng.integers(number, number + 3, length))
    episode = Episode(
        obs, rng.uniform(-1, 1, (length, 2)).astype(np.float32), floats[0], raw_reward, terminated, truncated,
        floats[1], floats[2], version,
    )  # fmt: skip
    success = [float("nan"), 0.0, 1.0][number % 3]
    total, shaped = float(raw_reward.sum(dtype=np.float64)), float(floats[0].sum(dtype=np.float64))
    versions = (int(version[0]), int(version[-1]))
    about = (10 * number, f"task-{number % 2}", 0, rng.random())
    facts = Facts(number % 4, number // 4, length, total, shaped, success, *versions, *about)
    return episode, facts


def same(a: Episode, b: Episode) -> bool:
    """Say whether two episodes are equal bit for bit."""
    pairs = zip(a, b, strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def fill(directory: Path, numbers: range, kind: str = "numbers", shard_bytes: int = 2000) -> None:
    """Write the episodes of some numbers and close."""
    with StoreWriter(directory, schema_of(kind), shard_bytes) as writer:
        for number in numbers:
            writer.append(*episode_of(number, kind=kind))


def numbers_in(data: Dataset) -> list[int]:
    """Return the numbers of the episodes in a dataset, each of which must be whole."""
    numbers: list[int] = (data.table["step"] // 10).tolist()
    spec = data.schema.spec
    kind = next(name for name, about in KINDS.items() if about == (spec.obs_shape, spec.obs_dtype))
    for row, (number, length) in enumerate(zip(numbers, data.table["length"].tolist(), strict=True)):
        assert same(data.episode(row), episode_of(number, length, kind)[0]), number
    return numbers
