"""What experts of K tasks did, in memory: transitions to imitate, many of them last ones, or example states alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, State
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Schema
from roboloop.data.index import SCHEMA
from roboloop.data.transitions import Transitions, every_kth, finals


class ExpertBatch(NamedTuple):
    """Transitions of each task, ``[K, n, ...]``."""

    obs: Array
    action: Array
    next_obs: Array
    terminated: Array


class ExpertPart(NamedTuple):
    """Some episodes of one task."""

    all: Transitions
    last: Transitions
    num_steps: int
    """Before thinning out."""


Read = Callable[[Dataset, Array], ExpertPart]
"""From a dataset and the rows of some of its episodes to what is drawn from."""


class ExpertBuffer:
    """Draws from the episodes that the datasets held when the run began; later ones are for later runs."""

    def __init__(self, datasets: Sequence[Dataset], cfg: ExpertConfig, seed: int, read: Read | None = None) -> None:
        self._datasets, self._cfg, self._seed = list(datasets), cfg, seed
        self._read = self._single_steps if read is None else read
        self._rng = stream(seed, "expert")
        self._choose([int(data.table["id"].max(initial=-1)) for data in self._datasets])

    def _choose(self, last_ids: list[int]) -> None:
        self._last_ids, self._counts = last_ids, list[int]()
        self._taught, self._held_out = list[ExpertPart](), list[ExpertPart]()
        for task, (data, last_id) in enumerate(zip(self._datasets, last_ids, strict=True)):
            rows = np.flatnonzero(data.table["id"] <= last_id)
            self._counts.append(len(rows))
            rows = rows[: self._cfg.episodes or None]
            taught, held_out = split(data, rows, self._cfg.held_out, self._seed, task)
            self._taught.append(self._read(data, taught))
            if len(held_out):
                self._held_out.append(self._read(data, held_out))

    def _single_steps(self, data: Dataset, rows: Array) -> ExpertPart:
        skip = leading_steps(data.schema)
        steps = int((data.table["length"][rows] - skip).sum())
        return ExpertPart(every_kth(data, self._cfg.every, self._seed, rows, skip), finals(data, rows, skip), steps)

    @property
    def num_steps(self) -> Array:
        """Steps of each task that are learned from, before thinning out."""
        return np.array([part.num_steps for part in self._taught], np.float64)

    @property
    def num_ends(self) -> Array:
        """Episodes of each task that ended because the world did."""
        return np.array([part.last.terminated.sum() for part in self._taught], np.float64)

    def sample(self, size: int, end_share: float | None = None) -> ExpertBatch:
        """Draw transitions of each task, by default with the config's share of last ones."""
        return self._drawn(self._taught, size, self._cfg.end_share if end_share is None else end_share)

    def held_out(self, size: int) -> ExpertBatch | None:
        """Draw transitions that nothing is learned from, as ``sample`` would; None where none are held out."""
        return self._drawn(self._held_out, size, self._cfg.end_share) if self._held_out else None

    def examples(self, size: int) -> Array:
        """Draw the states in which episodes ended, ``[K, n, ...]``: what a success looks like, without how."""
        return np.stack([part.last.next_obs[self._rng.integers(len(part.last.action), size=size)]
                         for part in self._taught])  # fmt: skip

    @property
    def example_deviation(self) -> Array:
        """How much each number of the examples of a task varies, ``[K, 1, ...]``."""
        return np.stack([part.last.next_obs.std(0, keepdims=True) for part in self._taught]).astype(np.float32)

    def _drawn(self, parts: Sequence[ExpertPart], size: int, end_share: float) -> ExpertBatch:
        num_last = round(end_share * size)
        columns = []
        for part in parts:
            some = self._rng.integers(len(part.all.action), size=size - num_last)
            last = self._rng.integers(len(part.last.action), size=num_last)
            columns.append([
                np.concatenate((getattr(part.all, name)[some], getattr(part.last, name)[last]))
                for name in ExpertBatch._fields
            ])  # fmt: skip
        return ExpertBatch(*(np.stack(column) for column in zip(*columns, strict=True)))

    def state(self) -> State:
        """Return which episodes are drawn from, and the draws."""
        return {"upto": self._last_ids, "episodes": self._counts, "rng": get_rng_state(self._rng)}

    def load(self, state: State) -> None:
        """Go on with the same episodes and draws, although the datasets may have grown."""
        if len(state["upto"]) != len(self._datasets):
            raise DataError(f"the run had experts of {len(state['upto'])} tasks, not of {len(self._datasets)}")
        if list(state["upto"]) != self._last_ids:
            self._choose([int(last_id) for last_id in state["upto"]])
        for data, had, has in zip(self._datasets, state["episodes"], self._counts, strict=True):
            if had != has:  # not a DataError: older checkpoints would not fit either
                raise ConfigError(
                    f"dataset {data.directory} had {had} episodes when this run began, of which {has} are left: "
                    "the run cannot go on exactly"
                )
        set_rng_state(self._rng, state["rng"])


def split(data: Dataset, rows: Array, held_out: float, seed: int, task: int = 0) -> tuple[Array, Array]:
    """Return the rows to learn from and the share that is held out: equal seeds hold out the same episodes."""
    wanted = max(1, round(held_out * len(rows))) if held_out else 0
    if len(rows) <= wanted:
        what = f"{data.directory} has {len(rows)} episodes of which {wanted} are held out"
        raise DataError(
            f"{what}: nothing is left to learn from"
            + ("; expert.held_out (or target.held_out) may be 0" if wanted else "")
        )
    order = stream(seed, "expert-held-out", task).permutation(len(rows))
    return rows[np.sort(order[wanted:])], rows[np.sort(order[:wanted])]


def leading_steps(schema: Schema) -> int:
    """Return how many steps of each episode only led up to its task, by the schedule that was recorded."""
    schedule = schema.source.get("recording", {}).get("schedule") or [["", 0]]
    return sum(int(steps) for _, steps in schedule[:-1])


def open_experts(directory: Path, tasks: Sequence[str]) -> list[Dataset]:
    """Return the dataset of each task."""
    if len(tasks) == 1 and (directory / SCHEMA).is_file():
        return [Dataset.open(directory)]
    missing = [task for task in tasks if not (directory / task / SCHEMA).is_file()]
    if missing:
        how = f"roboloop record ENV --expert --task {missing[0]} --out {directory / missing[0]}"
        raise DataError(f"{directory} has no dataset of {', '.join(missing)}: {how} makes one")
    return [Dataset.open(directory / task) for task in tasks]
