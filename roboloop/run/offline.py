"""Learning from a dataset: the same runner, logs, evaluations and checkpoints, with nothing to collect."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.algos.bc import behaviour_cloning
from roboloop.algos.config import BCConfig, DTConfig
from roboloop.algos.decision_transformer import decision_transformer
from roboloop.algos.imitation import DataScale, Imitation, return_scale_of
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import Array, EnvSpec, PortablePolicy, Rollout, State, WindowBatch
from roboloop.data.dataset import Dataset
from roboloop.data.index import SCHEMA
from roboloop.data.journal import START, Frontier, Journal, Record
from roboloop.data.windows import Windows
from roboloop.nets.observations import Fields
from roboloop.run.config import Experiment
from roboloop.sample.unhurried import Unhurried

SCALE_EPISODES = 200
"""Episodes that mean and deviation of observations are taken from, evenly spread."""


class StandingStill(Unhurried):
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


class WindowStore:
    """Windows of the episodes that the dataset held when the run began; later ones are for later runs."""

    journaled = False

    def __init__(self, cfg: Experiment) -> None:
        self._cfg = cfg
        self._dataset = Dataset.open(dataset_path(cfg.dataset))
        self._choose(self._last_id())

    def _last_id(self) -> int:
        return int(self._dataset.table["id"].max(initial=-1))

    def _choose(self, last_id: int) -> None:
        cfg, dataset = self._cfg, self._dataset
        assert isinstance(cfg.algo, DTConfig | BCConfig)
        self._known = dataset.table["id"] <= last_id
        self.rows = best_rows(dataset, np.flatnonzero(self._known), cfg.top_percent)
        self._upto = last_id
        self._windows = Windows(
            dataset, cfg.algo.context, cfg.algo.batch_size, cfg.seed, self.rows, cfg.window_cache_mb * 1_000_000
        )

    @property
    def dataset(self) -> Dataset:
        """Where the windows come from."""
        return self._dataset

    def add(self, rollout: Rollout) -> None:
        """Take nothing."""

    def sample(self) -> WindowBatch:
        """Draw windows; the arrays are reused by the next call."""
        return self._windows.sample()

    def attach(self, journal: Journal) -> None:
        """Keep nothing: the dataset is on disk already."""

    def commit(self) -> Frontier:
        """Return the beginning of a journal that is never written."""
        return START

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


def dataset_path(name: str) -> Path:
    """Return a dataset's directory; a run's stands for the dataset that was recorded in it."""
    path = Path(name)
    if (path / "dataset" / SCHEMA).is_file():
        return path / "dataset"
    if any((path / "journal").glob("seg-*.rlj")):
        advice = f"roboloop dataset import {path} OUT --format replay makes one of its replay journal"
        raise DataError(f"{path} recorded no dataset: {advice}")
    return path


def env_of_dataset(name: str) -> dict[str, Any]:
    """Return the environment section of whatever recorded a dataset; its observations are single ones, never stacks."""
    schema = Dataset.open(dataset_path(name)).schema
    return {**schema.source.get("env", {}), "id": schema.env_id, "frame_stack": 1}


def best_rows(dataset: Dataset, rows: Array, percent: float) -> Array:
    """Return the episodes of highest return that hold at least so many percent of the steps, in their old order."""
    order = rows[np.argsort(-dataset.table["episode_return"][rows], kind="stable")]
    steps = np.cumsum(dataset.table["length"][order])
    if not len(order) or percent >= 100:
        return rows
    return np.sort(order[: int(np.searchsorted(steps, steps[-1] * percent / 100)) + 1])


def scale_of(dataset: Dataset, rows: Array) -> DataScale:
    """Return mean and deviation of the vector part of observations, and the scale of returns."""
    fields = Fields.of(dataset.schema.spec, 1)
    scale = return_scale_of(dataset.table["episode_return"][rows])
    if not fields.vector_dim:
        return DataScale(np.zeros(0, np.float32), np.ones(0, np.float32), scale)
    some = rows[np.unique(np.linspace(0, len(rows) - 1, SCALE_EPISODES).astype(int))]
    seen = [fields.vector(obs[:-1], len(obs) - 1) for obs in (dataset.episode(int(row)).obs for row in some)]
    vectors = np.concatenate(seen).astype(np.float64)
    mean, std = vectors.mean(0), vectors.std(0)
    return DataScale(mean.astype(np.float32), std.astype(np.float32), scale)


def learner(cfg: Experiment, spec: EnvSpec, store: WindowStore) -> Imitation:
    """Return the algorithm for a dataset; a target that was not given is the best return in it."""
    assert isinstance(cfg.algo, DTConfig | BCConfig)
    check_spaces(cfg.env.id, spec, store.dataset)
    returns = store.dataset.table["episode_return"][store.rows]
    target = float(returns.max()) if cfg.target is None else cfg.target
    scale = scale_of(store.dataset, store.rows)
    if isinstance(cfg.algo, BCConfig):
        return behaviour_cloning(cfg.algo, spec, scale, cfg.seed, cfg.device)
    return decision_transformer(cfg.algo, spec, scale, target, cfg.seed, cfg.device)


def check_spaces(env_id: str, spec: EnvSpec, dataset: Dataset) -> None:
    """Refuse data whose observations or actions are not the environment's."""
    recorded = dataset.schema.spec
    for name in ("obs_shape", "obs_dtype", "action_low", "action_high", "action_choices"):
        if getattr(spec, name) != getattr(recorded, name):
            raise ConfigError(
                f"{env_id} has {name} {getattr(spec, name)}, the dataset {dataset.directory} {getattr(recorded, name)}"
            )


def describe(cfg: Experiment, store: WindowStore) -> str:
    """Return what a run learns from, in one line."""
    table, rows = store.dataset.table, store.rows
    returns = table["episode_return"][rows]
    return (
        f"plan: {len(rows)} of {len(table['id'])} episodes, {int(table['length'][rows].sum()):,} steps of "
        f"{store.dataset.directory}, returns {returns.min():.4g} to {returns.max():.4g}; "
        f"a step is one update, by up to {cfg.algo.processes} processes"
    )
