"""What imitation takes from its data before it learns: scales of observations and returns, and the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roboloop.algos.imitation.imitation import (
    DataScale,
    Imitation,
    behaviour_cloning,
    decision_transformer,
    return_scale_of,
)
from roboloop.algos.spec import Setup
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.nets.observations import Fields

SCALE_EPISODES = 200
"""Episodes that mean and deviation of observations are taken from, evenly spread."""


def make_transformer(setup: Setup) -> Imitation:
    """Return a Decision Transformer; a target return that was not given is the best one in the data."""
    first = setup.sources[0]
    best = float(first.dataset.table["episode_return"][first.rows].max())
    target = best if setup.experiment.target is None else setup.experiment.target
    return decision_transformer(setup.config, setup.spec, _scale(setup), target, setup.seed, setup.device)


def make_cloning(setup: Setup) -> Imitation:
    """Return behaviour cloning."""
    return behaviour_cloning(setup.config, setup.spec, _scale(setup), setup.seed, setup.device)


def _scale(setup: Setup) -> DataScale:
    return common_scale([scale_of(source.dataset, source.rows) for source in setup.sources])


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


def common_scale(scales: Sequence[DataScale]) -> DataScale:
    """Return mean and deviation of observations of which each task shows as many."""
    if len(scales) == 1:
        return scales[0]
    means, stds = np.stack([scale.obs_mean for scale in scales]), np.stack([scale.obs_std for scale in scales])
    mean = means.mean(0)
    std = np.sqrt((stds**2 + (means - mean) ** 2).mean(0))
    return DataScale(mean, std, max(scale.return_scale for scale in scales))
