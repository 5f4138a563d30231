from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from roboloop.track.stats import bootstrap_band, bootstrap_interval, iqm, iqm_interval, mean, spearman, wilson_interval


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 10), (37, 50), (50, 50), (0, 1)])
def test_wilson_equals_scipy(successes: int, n: int, confidence: float) -> None:
    expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_without_episodes_every_rate_is_possible() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_nothing_but_successes_is_not_certainty() -> None:
    low, high = wilson_interval(10, 10)
    assert high == 1.0
    assert low < 0.75


@pytest.mark.parametrize("n", [1, 3, 4, 7, 20])
def test_iqm_equals_scipys_trimmed_mean(n: int) -> None:
    values = np.random.default_rng(n).normal(size=(5, n))
    assert iqm(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25, axis=-1))


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_bootstrap_agrees_with_scipy(statistic: object) -> None:
    values = np.random.default_rng(1).gamma(2.0, size=30)
    reference = {mean: np.mean, iqm: lambda x, axis: scipy_stats.trim_mean(x, 0.25, axis=axis)}[statistic]  # type: ignore[index]
    expected = scipy_stats.bootstrap((values,), reference, n_resamples=20_000, method="percentile", rng=0)
    interval = bootstrap_interval(values, statistic=statistic, resamples=20_000)  # type: ignore[arg-type]
    assert interval == pytest.approx(tuple(expected.confidence_interval), abs=0.03)


def test_bootstrap_is_the_same_each_time_and_handles_one_and_none() -> None:
    assert bootstrap_interval([1.0, 2.0, 5.0]) == bootstrap_interval([1.0, 2.0, 5.0])
    assert bootstrap_interval([3.0]) == (3.0, 3.0)
    assert all(map(math.isnan, bootstrap_interval([])))


def test_the_interval_of_many_values_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    low, high = bootstrap_interval(values, resamples=100)
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(len(values)), rel=0.3)


def test_the_interval_of_the_iqm_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = iqm_interval(rng.normal(size=(10, 5)), resamples=400)
        hits += low <= 0.0 <= high
    assert 0.87 <= hits / 200 <= 0.99


def test_seeds_are_drawn_within_each_task() -> None:
    # tasks of very different level: were they mixed, the interval would be as wide as their distance
    matrix = np.random.default_rng(0).normal(size=(8, 2), scale=0.01) + np.array([0.0, 100.0])
    low, high = iqm_interval(matrix)
    assert high - low < 0.1


def test_a_band_is_the_bootstrap_interval_at_each_point() -> None:
    curves = np.random.default_rng(0).normal(size=(6, 3))
    low, high = bootstrap_band(curves, iqm, resamples=20_000)
    for point in range(3):
        expected = bootstrap_interval(curves[:, point], statistic=iqm, resamples=20_000)
        assert (low[point], high[point]) == pytest.approx(expected, abs=0.05)


def test_rank_correlation_agrees_with_scipy_where_there_are_ties() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 6, 80)
    b = a + rng.integers(0, 9, 80)
    assert spearman(a, b) == pytest.approx(scipy_stats.spearmanr(a, b).statistic)
    assert spearman([1, 2, 3], [10, 200, 3000]) == pytest.approx(1)
    assert np.isnan(spearman([1, 2, 3], [5, 5, 5]))
