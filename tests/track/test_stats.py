from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pytest
from scipy import stats as scipy_stats

from roboloop.core.rng import stream
from roboloop.track import stats
from roboloop.track.stats import (
    bootstrap_band,
    bootstrap_interval,
    efficiency,
    first_reached,
    improvement,
    improvement_interval,
    iqm,
    iqm_interval,
    mean,
    profile,
    profile_band,
    spearman,
    stratified_band,
    stratified_interval,
    wilson_interval,
)


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


def ragged(rng: np.random.Generator, sizes: Sequence[int]) -> list[np.ndarray]:
    return [rng.integers(0, 8, size) / 7 for size in sizes]


def plain_iqm(values: Iterable[float]) -> float:
    """The published definition: a quarter is left out at each end, counted in whole values."""
    ordered = sorted(values)
    cut = int(0.25 * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def plain_improvement(better: Sequence[Sequence[float]], worse: Sequence[Sequence[float]]) -> float:
    """Equation of section 4.3 of arXiv:2108.13264, as loops: the mean over tasks of the Mann-Whitney statistic."""
    shares = []
    for first, second in zip(better, worse, strict=True):
        wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in first for y in second]
        shares.append(sum(wins) / len(wins))
    return sum(shares) / len(shares)


def redrawn(scores: Sequence[np.ndarray], resamples: int) -> Iterator[list[list[float]]]:
    """The draws that the bootstrap makes of scores, one after another."""
    draws = [stream(0, "bootstrap", i).integers(len(c), size=(resamples, len(c))) for i, c in enumerate(scores)]
    for resample in range(resamples):
        yield [column[draw[resample]].tolist() for column, draw in zip(scores, draws, strict=True)]


def ends(samples: Iterable[float]) -> tuple[float, float]:
    low, high = np.quantile(list(samples), (0.025, 0.975))
    return float(low), float(high)


def test_a_run_that_always_wins_improves_for_sure_and_ties_count_half() -> None:
    assert improvement([[2.0, 3.0]], [[1.0, 1.5]]) == 1.0
    assert improvement([[1.0]], [[1.0]]) == 0.5
    assert improvement([[1.0, 3.0]], [[2.0]]) == 0.5
    # wins 3 of 4 pairs on the first task, none on the second
    assert improvement([[1.0, 3.0], [0.0]], [[0.5, 2.0], [1.0]]) == pytest.approx(0.375)


def test_a_profile_is_the_share_of_runs_above_each_level() -> None:
    assert profile([[0.0, 0.5], [1.0, 0.5]], [0.0, 0.5, 1.0]).tolist() == [0.75, 0.25, 0.0]


def test_the_first_step_at_a_level_is_found_and_none_where_there_is_none() -> None:
    step, value = np.array([10.0, 20.0, 30.0]), np.array([0.2, 0.9, 0.8])
    assert first_reached(step, value, 0.9) == 20
    assert first_reached(step, value, 0.95) is None


def test_intervals_over_tasks_equal_plain_loops_over_the_same_draws() -> None:
    rng = np.random.default_rng(3)
    scores, others, levels = ragged(rng, (3, 5, 4)), ragged(rng, (2, 6, 3)), [0.2, 0.5]
    assert iqm(np.concatenate(scores)) == pytest.approx(plain_iqm(np.concatenate(scores).tolist()))
    drawn = list(redrawn(scores, 300))
    expected = ends(plain_iqm(chain.from_iterable(draw)) for draw in drawn)
    assert stratified_interval(scores, resamples=300) == pytest.approx(expected, abs=1e-12)
    low, high = profile_band(scores, levels, resamples=300)
    for i, level in enumerate(levels):
        expected = ends(np.mean([x > level for x in chain.from_iterable(draw)]) for draw in drawn)
        assert (low[i], high[i]) == pytest.approx(expected, abs=1e-12)
    both = list(redrawn([*scores, *others], 300))
    expected = ends(plain_improvement(draw[:3], draw[3:]) for draw in both)
    assert improvement_interval(scores, others, resamples=300) == pytest.approx(expected, abs=1e-12)
    assert improvement(scores, others) == pytest.approx(plain_improvement(scores, others))  # type: ignore[arg-type]


def test_a_sample_efficiency_curve_is_the_iqm_over_tasks_and_seeds_at_each_point() -> None:
    rng = np.random.default_rng(4)
    curves = [rng.random((3, 5)), rng.random((4, 5))]
    low, high = stratified_band(curves, resamples=200)
    for point in range(5):
        columns = [curve[:, point] for curve in curves]
        assert efficiency(curves)[point] == pytest.approx(plain_iqm(np.concatenate(columns).tolist()))
        assert (low[point], high[point]) == pytest.approx(stratified_interval(columns, resamples=200), abs=1e-12)


def test_draws_do_not_depend_on_how_many_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = ragged(np.random.default_rng(5), (3, 4))
    whole = stratified_interval(scores, resamples=100)
    monkeypatch.setattr(stats, "_CHUNK", 50)
    assert stratified_interval(scores, resamples=100) == whole


def test_statistics_equal_rliable_on_the_same_draws() -> None:
    library, metrics = pytest.importorskip("rliable.library"), pytest.importorskip("rliable.metrics")
    rng, resamples, levels = np.random.default_rng(6), 200, np.array([0.1, 0.5, 0.9])
    x, y = rng.integers(0, 8, (5, 3)) / 7, rng.integers(0, 8, (4, 3)) / 7
    indices = [np.stack([stream(0, "bootstrap", c).integers(5, size=(resamples, 5)) for c in range(3)], axis=-1)]
    indices += [np.stack([stream(0, "bootstrap", c).integers(4, size=(resamples, 4)) for c in range(3, 6)], axis=-1)]
    tasks = np.arange(3)[None]

    class Same(library.StratifiedBootstrap):  # type: ignore[misc, name-defined]
        at = 0

        def update_indices(self):
            self.at += 1
            return indices[0][self.at - 1], tasks

    class SameTwice(library.StratifiedIndependentBootstrap):  # type: ignore[misc, name-defined]
        at = 0

        def update_indices(self):
            self.at += 1
            return [(drawn[self.at - 1], tasks) for drawn in indices], {}

    def theirs(bootstrap, function):
        return bootstrap.conf_int(function, reps=resamples, method="percentile").T

    iqm_of = metrics.aggregate_iqm
    assert iqm(x.ravel()) == pytest.approx(iqm_of(x), abs=1e-12)
    expected = theirs(Same(x), lambda s: np.array([iqm_of(s)]))[0]
    assert iqm_interval(x, resamples=resamples) == pytest.approx(expected, abs=1e-12)
    above = theirs(Same(x), lambda s: library.score_distributions(s, levels))
    assert profile(list(x.T), levels) == pytest.approx(library.score_distributions(x, levels), abs=1e-12)
    assert np.stack(profile_band(list(x.T), levels, resamples=resamples), 1) == pytest.approx(above, abs=1e-12)
    beats = metrics.probability_of_improvement
    assert improvement(list(x.T), list(y.T)) == pytest.approx(beats(x, y), abs=1e-12)
    expected = theirs(SameTwice(x, y), lambda a, b: np.array([beats(a, b)]))[0]
    assert improvement_interval(list(x.T), list(y.T), resamples=resamples) == pytest.approx(expected, abs=1e-12)
