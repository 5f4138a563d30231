"""What a result is and how sure it is: few seeds, few episodes, no normality assumed.

Scores of several tasks are one list of seeds for each task, which may differ in length. The definitions are those of
arXiv:2108.13264; seeds are drawn anew within each task (a stratified bootstrap).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roboloop.core.rng import stream

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], Floats]
"""Reduces the last axis."""
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
    values: ArrayLike, confidence: float = 0.95, statistic: Statistic = mean, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of a statistic; NaN without values."""
    return stratified_interval([np.ravel(values)], confidence, statistic, resamples, seed)


def iqm_interval(
    matrix: ArrayLike | Sequence[Sequence[float]], confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> Interval:
    """Return the interval of the IQM of ``[seeds, tasks]``, seeds drawn anew for each task."""
    scores = np.asarray(matrix, dtype=np.float64)
    return stratified_interval(list(scores.reshape(len(scores), -1).T), confidence, iqm, resamples, seed)


def stratified_interval(
    scores: Sequence[ArrayLike],
    confidence: float = 0.95,
    statistic: Statistic = iqm,
    resamples: int = 2_000,
    seed: int = 0,
) -> Interval:
    """Return the interval of a statistic of all scores of all tasks; NaN without scores."""
    columns = _columns(scores)
    if not columns:
        return Interval(np.nan, np.nan)
    low, high = _bootstrap(columns, _pooled(statistic), confidence, resamples, seed)
    return Interval(float(low), float(high))


def bootstrap_band(
    curves: Floats, statistic: Statistic, confidence: float = 0.95, resamples: int = 1_000, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the interval at each point of ``[seeds, points]``; whole curves are drawn, so the band is smooth."""
    return stratified_band([curves], statistic, confidence, resamples, seed)


def stratified_band(
    curves: Sequence[Floats],
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    resamples: int = 1_000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return the band of a sample-efficiency curve: for each task curves ``[seeds, points]`` over the same points."""
    low, high = _bootstrap([curve.T for curve in curves], _pooled(statistic), confidence, resamples, seed)
    return low, high


def efficiency(curves: Sequence[Floats], statistic: Statistic = iqm) -> Floats:
    """Return a statistic of all seeds of all tasks at each point; for each task curves ``[seeds, points]``."""
    return statistic(np.concatenate(curves).T)


def improvement(better: Sequence[ArrayLike], worse: Sequence[ArrayLike]) -> float:
    """Return how likely a run of one method beats a run of another on a task drawn at random; ties count half."""
    return float(_improvement(_columns(better), _columns(worse)))


def improvement_interval(
    better: Sequence[ArrayLike],
    worse: Sequence[ArrayLike],
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Interval:
    """Return the interval of ``improvement``; the runs of both methods are drawn anew, each for itself."""
    first, second = _columns(better), _columns(worse)

    def statistic(drawn: Sequence[Floats]) -> Floats:
        return _improvement(drawn[: len(first)], drawn[len(first) :])

    low, high = _bootstrap([*first, *second], statistic, confidence, resamples, seed)
    return Interval(float(low), float(high))


def profile(scores: Sequence[ArrayLike], thresholds: ArrayLike) -> Floats:
    """Return the share of all runs on all tasks that score above each threshold."""
    return _above(thresholds)(_columns(scores))


def profile_band(
    scores: Sequence[ArrayLike],
    thresholds: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return the interval of a performance profile at each threshold."""
    low, high = _bootstrap(_columns(scores), _above(thresholds), confidence, resamples, seed)
    return low, high


def first_reached(step: Floats, value: Floats, threshold: float) -> float | None:
    """Return the first step at which a curve is at or above a threshold; None where it never is."""
    reached = np.flatnonzero(value >= threshold)
    return float(step[reached[0]]) if len(reached) else None


def _columns(scores: Sequence[ArrayLike]) -> list[Floats]:
    """Return the scores of each task that has any."""
    columns = [np.asarray(column, dtype=np.float64).ravel() for column in scores]
    return [column for column in columns if column.size]


def _pooled(statistic: Statistic) -> Callable[[Sequence[Floats]], Floats]:
    return lambda columns: statistic(np.concatenate(columns, axis=-1))


def _above(thresholds: ArrayLike) -> Callable[[Sequence[Floats]], Floats]:
    levels = np.asarray(thresholds, dtype=np.float64)

    def share(columns: Sequence[Floats]) -> Floats:
        pooled = np.concatenate(columns, axis=-1)
        return np.stack([mean(np.asarray(pooled > level, np.float64)) for level in levels])

    return share


def _improvement(better: Sequence[Floats], worse: Sequence[Floats]) -> Floats:
    """Return the mean over tasks of the share of pairs of runs in which the first is better."""
    shares = []
    for first, second in zip(better, worse, strict=True):
        left, right = first[..., :, None], second[..., None, :]
        wins = (left > right) + 0.5 * (left == right)
        shares.append(wins.mean(axis=(-2, -1)))
    return mean(np.stack(shares, axis=-1))


def _bootstrap(
    columns: Sequence[Floats],
    statistic: Callable[[Sequence[Floats]], Floats],
    confidence: float,
    resamples: int,
    seed: int,
) -> Floats:
    """Return both ends ``[2, ...]`` of a statistic of columns ``[..., runs]``, each of which has draws of its own."""
    rngs = [stream(seed, "bootstrap", number) for number in range(len(columns))]
    chunk = max(1, _CHUNK // sum(column.size for column in columns))
    samples: list[Floats] = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn = []
        for rng, column in zip(rngs, columns, strict=True):
            runs = column.shape[-1]
            drawn.append(column[..., rng.integers(runs, size=(size, runs))])
        samples.append(statistic(drawn))
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    return np.asarray(np.quantile(np.concatenate(samples, axis=-1), tails, axis=-1))


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
