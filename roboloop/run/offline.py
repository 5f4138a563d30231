"""Learning from a dataset: the same runner, logs, evaluations and checkpoints, with nothing to collect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.algos.gail.demonstrations import check_spaces
from roboloop.algos.limits import check_task_rows
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.rng import derive
from roboloop.core.types import Array, EnvSpec, PortablePolicy, Rollout, State, WindowBatch
from roboloop.data.dataset import Dataset
from roboloop.data.experts import leading_steps, open_experts
from roboloop.data.index import SCHEMA
from roboloop.data.journal import START, Frontier, Journal, Record
from roboloop.data.windows import WindowSampler
from roboloop.envs import registry
from roboloop.run.config import Experiment
from roboloop.sample.unhurried import NotRealTime


class NoSampler(NotRealTime):
    """A sampler that collects nothing: each call stands for one gradient step, so that all schedules count these."""

    def __init__(self) -> None:
        one = np.zeros((1, 1), np.float32)
        flag = np.zeros((1, 1), bool)
        self._tick = Rollout(
            obs=np.zeros((2, 1)), action=one[None], reward=one, raw_reward=one, terminated=flag, truncated=flag,
            log_prob=one, value=np.zeros((2, 1)), memory=one, version=np.zeros(1, np.int64), episodes=[],
        )  # fmt: skip

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Return a rollout of one step in which nothing happened."""
        return self._tick

    def faults(self) -> list[str]:
        """Return nothing."""
        return []

    def stats(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""

    def close(self) -> None:
        """Release nothing."""


class _OnDisk:
    """What a store has in common whose experience is on disk already."""

    journaled = False

    def add(self, rollout: Rollout) -> None:
        """Take nothing."""

    def attach(self, journal: Journal) -> None:
        """Keep nothing."""

    def commit(self) -> Frontier:
        """Return the beginning of a journal that is never written."""
        return START


class WindowStore(_OnDisk):
    """Windows of the episodes that a dataset held when the run began, all or those of one task.

    Later ones are for later runs.
    """

    def __init__(self, cfg: Experiment, dataset: Dataset, batch_size: int, seed: int, task: str = "") -> None:
        self._cfg, self._dataset, self._batch_size, self._seed, self._task = cfg, dataset, batch_size, seed, task
        self._choose(self._last_id())

    def _last_id(self) -> int:
        return int(self._dataset.table["id"].max(initial=-1))

    def _choose(self, last_id: int) -> None:
        cfg, dataset = self._cfg, self._dataset
        algo: Any = cfg.algo  # has ``batch_size`` and ``context``, as everything that learns from a dataset
        self._known = dataset.table["id"] <= last_id
        if self._task:
            self._known = self._known & (dataset.table["task"] == self._task)
            if not self._known.any():
                raise DataError(f"dataset {dataset.directory} has no episodes of {self._task}")
        self.rows = best_rows(dataset, np.flatnonzero(self._known), cfg.top_percent)
        self._upto = last_id
        cache_bytes = cfg.window_cache_mb * 1_000_000 * self._batch_size // algo.batch_size
        self._windows = WindowSampler(
            dataset, algo.context, self._batch_size, self._seed, self.rows, cache_bytes,
            leading_steps(dataset.schema), cfg.window_every,
        )  # fmt: skip

    @property
    def dataset(self) -> Dataset:
        """Where the windows come from."""
        return self._dataset

    @property
    def parts(self) -> Sequence[WindowStore]:
        """All there is."""
        return [self]

    def sample(self) -> WindowBatch:
        """Draw windows; the arrays are reused by the next call."""
        return self._windows.sample()

    def state(self) -> State:
        """Return which episodes are drawn from, and the draws."""
        return {"upto": self._upto, "episodes": int(self._known.sum()), "windows": self._windows.state()}

    def load(self, state: State, records: Iterable[Record]) -> None:
        """Go on with the same episodes and draws, although the dataset may have grown."""
        if state["upto"] != self._upto:
            self._choose(int(state["upto"]))
        if state["episodes"] != int(self._known.sum()):
            # not a DataError: older checkpoints would not fit either
            raise ConfigError(
                f"dataset {self._dataset.directory} had {state['episodes']} episodes when this run began, of which "
                f"{int(self._known.sum())} are left: the run cannot go on exactly"
            )
        self._windows.load(state["windows"])


class TaskStore(_OnDisk):
    """As many windows of each task in every batch, task by task."""

    def __init__(self, parts: Sequence[WindowStore]) -> None:
        self.parts = parts

    def sample(self) -> WindowBatch:
        """Draw windows of every task."""
        columns = zip(*(part.sample() for part in self.parts), strict=True)
        return WindowBatch(*(np.concatenate(column) for column in columns))

    def state(self) -> State:
        """Return which episodes of each task are drawn from, and the draws."""
        return {"tasks": [part.state() for part in self.parts]}

    def load(self, state: State, records: Iterable[Record]) -> None:
        """Go on with the same episodes and draws."""
        for part, saved in zip(self.parts, state["tasks"], strict=True):
            part.load(saved, ())


def open_store(cfg: Experiment, spec: EnvSpec) -> WindowStore | TaskStore:
    """Return what a run learns from: one dataset, or the episodes of each task that the network has a head for."""
    algo: Any = cfg.algo
    path, batch_size = dataset_path(cfg.dataset), algo.batch_size
    if not cfg.algorithm.by_task(algo):
        if of_tasks(path):
            raise ConfigError(f"{path} holds a dataset for each task: give the one of one, or set algo.net to 'heads'")
        store = WindowStore(cfg, Dataset.open(path), batch_size, cfg.seed)
        check_spaces(cfg.env.id, spec, store.dataset)
        return store
    tasks = spec.tasks
    if len(tasks) < 2:
        raise ConfigError(
            f"algo.net 'heads' needs several tasks, {cfg.env.id} has one; a set such as metaworld/mt3 has some"
        )
    check_task_rows(algo, len(tasks))
    datasets = [Dataset.open(path)] * len(tasks) if spec.own_tasks else open_experts(path, tasks)
    for dataset in datasets:
        check_spaces(cfg.env.id, spec, dataset)
    named = [task if spec.own_tasks else "" for task in tasks]
    return TaskStore([
        WindowStore(cfg, dataset, batch_size // len(tasks), derive(cfg.seed, "task", number), name)
        for number, (dataset, name) in enumerate(zip(datasets, named, strict=True))
    ])  # fmt: skip


def dataset_path(name: str) -> Path:
    """Return a dataset's directory; a run's stands for the dataset that was recorded in it."""
    path = Path(name)
    if (path / "dataset" / SCHEMA).is_file():
        return path / "dataset"
    if any((path / "journal").glob("seg-*.rlj")):
        advice = f"roboloop dataset import {path} OUT --format replay makes one of its replay journal"
        raise DataError(f"{path} recorded no dataset: {advice}")
    return path


def of_tasks(path: Path) -> list[Path]:
    """Return the datasets in a directory that is none itself, one for each task."""
    return [] if (path / SCHEMA).is_file() else sorted(schema.parent for schema in path.glob(f"*/{SCHEMA}"))


def env_of_dataset(name: str) -> dict[str, Any]:
    """Return the environment section of whatever recorded a dataset; its observations are single ones, never stacks."""
    path = dataset_path(name)
    schemas = [Dataset.open(part).schema for part in of_tasks(path) or (path,)]
    if len(ids := sorted({schema.env_id for schema in schemas})) > 1:
        how = "roboloop record ENV --expert --task NAME records tasks of one, and a set such as metaworld/mt3 is one"
        raise DataError(f"{path} holds datasets of several environments ({', '.join(ids)}): {how}")
    schema = schemas[0]
    env = registry.as_written_now({**schema.source.get("env", {}), "id": schema.env_id})
    return {**env, "frame_stack": 1}


def best_rows(dataset: Dataset, rows: Array, percent: float) -> Array:
    """Return the episodes of highest return that hold at least so many percent of the steps, in their old order."""
    order = rows[np.argsort(-dataset.table["episode_return"][rows], kind="stable")]
    steps = np.cumsum(dataset.table["length"][order])
    if not len(order) or percent >= 100:
        return rows
    return np.sort(order[: int(np.searchsorted(steps, steps[-1] * percent / 100)) + 1])


def describe(cfg: Experiment, store: WindowStore | TaskStore) -> str:
    """Return what a run learns from, in one line."""
    parts = [(part.dataset.table, part.rows) for part in store.parts]
    returns = np.concatenate([table["episode_return"][rows] for table, rows in parts])
    steps = sum(int(table["length"][rows].sum()) for table, rows in parts)
    # parts of one dataset that are learned from by task are all of it
    known = len(parts[0][0]["id"]) if len(parts) == 1 else len(returns)
    tasks = f" and {len(parts)} tasks" if len(parts) > 1 else ""
    return (
        f"plan: {len(returns)} of {known} episodes, {steps:,} steps{tasks} of {dataset_path(cfg.dataset)}, "
        f"returns {returns.min():.4g} to {returns.max():.4g}; "
        f"a step is one update, by up to {getattr(cfg.algo, 'processes', 1)} processes"
    )
