"""Intervals that say how sure a result is: few seeds, few episodes, no normality assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
_CHUNK = 4_000_000  # resampled values held in memory at once


class Interval(NamedTuple):
    """Lower and upper end of a confidence interval."""

    low: float
    high: float


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Return the Wilson score interval of a success rate; it is sound at 0 and 1 and for few episodes."""
    if n == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, shrink = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    half = z * np.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / shrink
    # exact at the ends, where rounding would leave 1e-17
    return Interval(
        0.0 if successes == 0 else max(0.0, float(centre - half)),
        1.0 if successes == n else min(1.0, float(centre + half)),
    )


def mean(values: Floats) -> Floats:
    """Return the mean over the last axis."""
    return np.asarray(values.mean(axis=-1))


def iqm(values: ArrayLike) -> Floats:
    """Return the mean of the middle half over the last axis (arXiv:2108.13264); below four values that is the mean."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    n = ordered.shape[-1]
    cut = n // 4
    return mean(ordered[..., cut : n - cut])


def bootstrap_interval(
    values: ArrayLike,
    confidence: float = 0.95,
    statistic: Callable[[Floats], Floats] = mean,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of a statistic (which reduces the last axis); NaN without values."""
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    return _stratified(column, confidence, statistic, resamples, seed)


def iqm_interval(
    matrix: ArrayLike | Sequence[Sequence[float]], confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> Interval:
    """Return the interval of the IQM of ``[seeds, tasks]``, seeds drawn anew for each task (arXiv:2108.13264)."""
    scores = np.asarray(matrix, dtype=np.float64)
    return _stratified(scores.reshape(len(scores), -1), confidence, iqm, resamples, seed)


def bootstrap_band(
    curves: Floats,
    statistic: Callable[[Floats], Floats],
    confidence: float = 0.95,
    resamples: int = 1_000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return the interval at each point of ``[seeds, points]``; whole curves are drawn, so the band is smooth."""
    draws = np.random.default_rng(seed).integers(len(curves), size=(resamples, len(curves)))
    samples = np.stack([statistic(column[draws]) for column in curves.T], axis=-1)
    low, high = np.quantile(samples, _tails(confidence), axis=0)
    return low, high


def _stratified(
    matrix: Floats, confidence: float, statistic: Callable[[Floats], Floats], resamples: int, seed: int
) -> Interval:
    if matrix.size == 0:
        return Interval(np.nan, np.nan)
    rng = np.random.default_rng(seed)
    rows, columns = matrix.shape
    samples: list[Floats] = []
    chunk = max(1, _CHUNK // matrix.size)
    for start in range(0, resamples, chunk):
        draws = rng.integers(rows, size=(min(chunk, resamples - start), rows, columns))
        samples.append(statistic(matrix[draws, np.arange(columns)].reshape(len(draws), -1)))
    low, high = np.quantile(np.concatenate(samples), _tails(confidence))
    return Interval(float(low), float(high))


def _tails(confidence: float) -> tuple[float, float]:
    return (1 - confidence) / 2, (1 + confidence) / 2


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Return the rank correlation, ties sharing their mean rank; NaN where one side does not vary."""
    rank_a, rank_b = (_ranks(np.asarray(values)) for values in (a, b))
    spread = float(np.std(rank_a) * np.std(rank_b))
    covariance = float(np.mean((rank_a - rank_a.mean()) * (rank_b - rank_b.mean())))
    return covariance / spread if spread else float("nan")


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Floats = last - (counts - 1) / 2
    return mean_rank[inverse]
