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


SCORES = np.array([[0.31, 0.92, 0.15], [0.88, 0.27, 0.64], [0.05, 0.58, 0.97], [0.73, 0.66, 0.22], [0.94, 0.12, 0.43]])
OTHERS = np.array([[0.31, 0.85, 0.15], [0.52, 0.08, 0.39], [0.73, 0.24, 0.81], [0.19, 0.47, 0.22]])
"""``[seeds, tasks]``, as rliable takes them; with ties."""
LEVELS, RESAMPLES = (0.1, 0.5, 0.9), 200
# What rliable 1.2.0 (with arch 7.2.0, numpy 2.4.6) says of these scores on the draws that ours are made with:
# python3.11 -m venv V; V/bin/pip install rliable==1.2.0 'pandas<3' scipy pytest
# PYTHONPATH=. V/bin/python -c 'from tests.track.test_stats import said_by_rliable as f; print(f())'
RLIABLE = {
    "iqm": [0.5244444444444445],
    "iqm_interval": [0.31877777777777777, 0.7357222222222223],
    "profile": [0.9333333333333333, 0.5333333333333333, 0.2],
    "profile_low": [0.8, 0.33166666666666694, 0.0],
    "profile_high": [1.0, 0.7333333333333333, 0.4],
    "improvement": [0.6333333333333333],
    "improvement_interval": [0.458125, 0.841875],
}


def said_by_rliable() -> dict[str, list[float]]:
    """Ask rliable itself, with our draws in place of its own."""
    from rliable import library, metrics

    tasks = np.arange(3)[None]
    drawn = [
        np.stack([stream(0, "bootstrap", c).integers(seeds, size=(RESAMPLES, seeds)) for c in columns], axis=-1)
        for seeds, columns in ((len(SCORES), range(3)), (len(OTHERS), range(3, 6)))
    ]

    class Same(library.StratifiedBootstrap):  # type: ignore[misc, name-defined]
        at = -1

        def update_indices(self):
            self.at += 1
            return drawn[0][self.at], tasks

    class SameTwice(library.StratifiedIndependentBootstrap):  # type: ignore[misc, name-defined]
        at = -1

        def update_indices(self):
            self.at += 1
            return [(draws[self.at], tasks) for draws in drawn], {}

    def interval(bootstrap, function):
        return bootstrap.conf_int(lambda *x: np.atleast_1d(function(*x)), reps=RESAMPLES, method="percentile")

    def share(scores):
        return library.score_distributions(scores, np.array(LEVELS))

    beats = metrics.probability_of_improvement
    said = {
        "iqm": metrics.aggregate_iqm(SCORES),
        "iqm_interval": interval(Same(SCORES), metrics.aggregate_iqm),
        "profile": share(SCORES),
        "profile_low": interval(Same(SCORES), share)[0],
        "profile_high": interval(Same(SCORES), share)[1],
        "improvement": beats(SCORES, OTHERS),
        "improvement_interval": interval(SameTwice(SCORES, OTHERS), beats),
    }
    return {name: np.ravel(value).tolist() for name, value in said.items()}


def test_statistics_equal_what_rliable_says_on_the_same_draws() -> None:
    scores, others = list(SCORES.T), list(OTHERS.T)
    low, high = profile_band(scores, LEVELS, resamples=RESAMPLES)
    ours = {
        "iqm": iqm(SCORES.ravel()),
        "iqm_interval": iqm_interval(SCORES, resamples=RESAMPLES),
        "profile": profile(scores, LEVELS),
        "profile_low": low,
        "profile_high": high,
        "improvement": improvement(scores, others),
        "improvement_interval": improvement_interval(scores, others, resamples=RESAMPLES),
    }
    assert {name: np.ravel(value).tolist() for name, value in ours.items()} == {
        name: pytest.approx(value, abs=1e-12) for name, value in RLIABLE.items()
    }


def test_rliable_says_so_still() -> None:
    pytest.importorskip("rliable.library")
    assert said_by_rliable() == {name: pytest.approx(value, abs=1e-12) for name, value in RLIABLE.items()}
