"""The scales of a dataset: what is learned from it, and acted upon, is measured in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roboloop.algos.spec import Setup
from roboloop.core.errors import DataError
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.nets.normalize import FollowedNorm, Identity, Normalizer
from roboloop.nets.observations import Fields

SCALE_EPISODES = 200
"""Episodes that mean and deviation of observations are taken from, evenly spread."""
LEAST_STD = 1e-6
"""Observations that vary less than this are taken for constants, and left in their own unit."""
LEAST_RETURN = 1e-3


class DataScale(NamedTuple):
    """Where a dataset's numbers lie, and how far they spread."""

    obs_mean: Array
    """``[D]`` of all vector fields of an observation side by side; pictures are not counted."""
    obs_std: Array
    return_scale: float
    """Episode returns, divided by this, are about one."""

    def norm(self, dim: int) -> Normalizer:
        """Return what shifts and scales vectors of so many numbers."""
        mean, std = (np.asarray(a, np.float32).reshape(-1) for a in (self.obs_mean, self.obs_std))
        if not len(mean) == len(std) == dim:
            raise DataError(f"scales of {len(mean)} numbers do not fit observations of {dim}")
        if not self.return_scale > 0:
            raise DataError(f"the scale of returns must be above 0, not {self.return_scale}")
        if not dim:
            return Identity()
        norm = FollowedNorm(dim)
        norm.numbers[:] = np.concatenate((mean, np.where(std > LEAST_STD, 1.0 / (std + LEAST_STD), 1.0)))
        return norm


def scale_of_sources(setup: Setup) -> DataScale:
    """Return the scales of all that a run learns from."""
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


def return_scale_of(returns: Array) -> float:
    """Return a scale that brings a dataset's episode returns to about one: the 99th percentile, whatever its sign."""
    return max(abs(float(np.percentile(returns, 99))), LEAST_RETURN)


def common_scale(scales: Sequence[DataScale]) -> DataScale:
    """Return mean and deviation of observations of which each task shows as many."""
    if len(scales) == 1:
        return scales[0]
    means, stds = np.stack([scale.obs_mean for scale in scales]), np.stack([scale.obs_std for scale in scales])
    mean = means.mean(0)
    std = np.sqrt((stds**2 + (means - mean) ** 2).mean(0))
    return DataScale(mean, std, max(scale.return_scale for scale in scales))
