"""What stays when the budget is full, over thousands of episodes that nobody simulates."""

import numpy as np
import pytest

from roboloop.data.episodes import Facts
from roboloop.data.retention import KeepAll, KeepExperts, KeepLast, Mixture, Reservoir, Stratified, TopReturn


def facts(number, rng, length=10, version=None, episode_return=None, step=None):
    value = float(rng.normal()) if episode_return is None else episode_return
    version = number if version is None else version
    step = (number + 1) * length if step is None else step
    return Facts(0, number, length, value, value, np.nan, version, version, step, "", 0, float(rng.random()))


class Shelf:
    """A store without a disk: as many bytes as it is given, an episode takes 10 per step."""

    def __init__(self, retention, capacity):
        self.retention, self.capacity = retention, capacity
        self.kept: dict[int, Facts] = {}
        self.turned_away = 0

    def live(self):
        columns = {name: np.array([getattr(f, name) for f in self.kept.values()]) for name in Facts._fields}
        lengths = np.array([10 * f.length for f in self.kept.values()], np.int64)
        return {**columns, "id": np.array(list(self.kept), np.int64), "bytes": lengths}

    @property
    def used(self):
        return sum(10 * f.length for f in self.kept.values())

    def offer(self, episode, is_expert=False):
        if self.retention.wants(episode, is_expert):
            while self.used + 10 * episode.length > self.capacity:
                gone = self.retention.victims(self.live(), self.used + 10 * episode.length - self.capacity)
                assert len(gone), "nothing may go"
                for number in gone.tolist():
                    del self.kept[number]
            if self.retention.wants(episode, is_expert):
                self.kept[episode.episode] = episode
                self.retention.added(episode.episode)
                return
        self.turned_away += 1

    def sweep(self, step):
        for number in self.retention.stale(self.live(), step).tolist():
            del self.kept[number]


def test_all_lets_nothing_go():
    shelf = Shelf(KeepAll(), 1000)
    rng = np.random.default_rng(0)
    for number in range(10):
        shelf.offer(facts(number, rng))
    assert len(shelf.retention.victims(shelf.live(), 1)) == 0


def test_last_keeps_the_newest_that_fit():
    shelf = Shelf(KeepLast(), 1000)
    rng = np.random.default_rng(0)
    for number in range(100):
        shelf.offer(facts(number, rng))
    assert sorted(shelf.kept) == list(range(90, 100))


@pytest.mark.parametrize("killed_at", [37, 200, 1000])
def test_the_last_percent_is_right_whenever_the_run_is_killed(killed_at):
    shelf = Shelf(KeepLast(percent=10), 1e9)
    rng = np.random.default_rng(0)
    for number in range(killed_at):
        shelf.offer(facts(number, rng))
        shelf.sweep((number + 1) * 10)
    steps = killed_at * 10
    assert sorted(shelf.kept) == [n for n in range(killed_at) if (n + 1) * 10 > 0.9 * steps]


def test_a_reservoir_is_uniform_over_the_run_whatever_the_lengths():
    rng = np.random.default_rng(0)
    hits = np.zeros(200)
    for _ in range(400):
        shelf = Shelf(Reservoir(), 3_000)
        for number in range(200):
            # the first half is short: an even draw must not care
            shelf.offer(facts(number, rng, length=5 if number < 100 else 20))
        hits[list(shelf.kept)] += 1
    expected = hits.mean()
    assert expected > 40
    tenths = hits.reshape(10, 20).mean(1)
    assert np.abs(tenths / expected - 1).max() < 0.15
    chi2 = ((hits - expected) ** 2 / expected).sum()
    assert chi2 < 200 + 4 * np.sqrt(2 * 200)


def test_a_reservoirs_threshold_only_falls_and_nothing_below_it_is_ever_missing():
    rng = np.random.default_rng(0)
    shelf, seen, thresholds = Shelf(Reservoir(), 5_000), [], []
    for number in range(1_000):
        episode = facts(number, rng)
        seen.append(episode)
        shelf.offer(episode)
        thresholds.append(shelf.retention.threshold)
        assert set(shelf.kept) == {f.episode for f in seen if f.key < shelf.retention.threshold}
    assert (np.diff(thresholds) <= 0).all()
    assert 700 < shelf.turned_away < 900  # about 50 (1 + ln 20) of 1000 are ever taken


def test_a_reservoir_goes_on_where_it_was_and_clears_what_a_crash_left():
    rng = np.random.default_rng(0)
    shelf = Shelf(Reservoir(), 5_000)
    for number in range(300):
        shelf.offer(facts(number, rng))
    resumed = Reservoir()
    resumed.load(shelf.retention.state())
    assert resumed.threshold == shelf.retention.threshold
    too_many = facts(300, rng)._replace(key=0.9)
    shelf.kept[300] = too_many
    shelf.sweep(0)
    assert 300 not in shelf.kept


def test_stratified_covers_every_stage_of_learning_evenly():
    rng = np.random.default_rng(0)
    shelf = Shelf(Stratified(num_bins=8), 16_000)
    number = 0
    for version in range(1_000):
        # late policies are slow: the first half of the versions has ten times as many episodes
        for _ in range(10 if version < 500 else 1):
            shelf.offer(facts(number, rng, version=version))
            number += 1
        shelf.sweep(0)
    versions = np.array([f.version_last for f in shelf.kept.values()])
    counts = np.bincount(versions // shelf.retention.width, minlength=8)
    assert shelf.retention.width == 128
    assert len(counts) == 8
    assert counts.max() <= counts.min() + 4
    assert counts.min() > 12


def test_within_a_bin_stratified_is_uniform():
    rng = np.random.default_rng(0)
    hits = np.zeros(160)
    for _ in range(300):
        shelf = Shelf(Stratified(num_bins=4), 4_000)
        for number in range(160):
            shelf.offer(facts(number, rng))  # one episode per version
            if number % 7 == 0:
                shelf.sweep(0)
        shelf.sweep(0)
        hits[list(shelf.kept)] += 1
    width = shelf.retention.width
    for begin in range(0, 160, width):
        inside = hits[begin : begin + width]
        halves = inside[: len(inside) // 2].mean(), inside[len(inside) // 2 :].mean()
        assert abs(halves[0] / halves[1] - 1) < 0.2


def test_top_return_keeps_the_best_and_its_worst_only_rises():
    rng = np.random.default_rng(0)
    shelf, returns, worst = Shelf(TopReturn(), 2_000), [], []
    for number in range(500):
        episode = facts(number, rng)
        returns.append(episode.episode_return)
        shelf.offer(episode)
        if shelf.turned_away:
            worst.append(min(f.episode_return for f in shelf.kept.values()))
    assert (np.diff(worst) >= 0).all()
    kept = sorted(f.episode_return for f in shelf.kept.values())
    assert kept == sorted(returns)[-len(kept) :]
    assert len(kept) >= 19
    resumed = TopReturn()
    resumed.load(shelf.retention.state())
    assert resumed.floor == shelf.retention.floor


def test_experts_are_kept_and_the_oldest_of_them_go_first():
    rng = np.random.default_rng(0)
    shelf = Shelf(KeepExperts(), 1_000)
    for number in range(100):
        shelf.offer(facts(number, rng), is_expert=number % 3 == 0)
    assert sorted(shelf.kept) == list(range(72, 100, 3))


def mixture():
    return Mixture([KeepExperts(), Reservoir()], [50, 50])


def test_each_part_of_a_mixture_has_its_share_and_what_both_keep_is_stored_once():
    rng = np.random.default_rng(0)
    shelf = Shelf(mixture(), 20_000)
    for number in range(2_000):
        shelf.offer(facts(number, rng), is_expert=number % 4 == 0)
    owners = shelf.retention._owners
    assert owners.keys() == shelf.kept.keys()
    experts = [n for n, bits in owners.items() if bits & 1]
    drawn = [n for n, bits in owners.items() if bits & 2]
    assert all(n % 4 == 0 for n in experts)
    assert 85 <= len(experts) <= 115
    assert 85 <= len(drawn) <= 115
    assert min(experts) > 1_500  # the newest
    threshold = shelf.retention._parts[1].threshold
    assert all(shelf.kept[n].key < threshold for n in drawn)


def test_the_even_part_of_a_mixture_is_even_over_experts_too():
    rng = np.random.default_rng(0)
    drawn_experts = drawn = 0
    for _ in range(30):
        shelf = Shelf(mixture(), 10_000)
        for number in range(600):
            shelf.offer(facts(number, rng), is_expert=number % 4 == 0)
        mine = [n for n, bits in shelf.retention._owners.items() if bits & 2]
        drawn += len(mine)
        drawn_experts += sum(n % 4 == 0 for n in mine)
    assert abs(drawn_experts / drawn - 0.25) < 0.04


def test_a_part_that_has_nothing_yet_lends_its_share():
    rng = np.random.default_rng(0)
    shelf = Shelf(mixture(), 10_000)
    for number in range(500):
        shelf.offer(facts(number, rng))
    assert len(shelf.kept) >= 95


def test_a_mixture_goes_on_as_it_would_have():
    def run(break_at):
        rng = np.random.default_rng(0)
        shelf = Shelf(mixture(), 10_000)
        for number in range(800):
            if number == break_at:
                state = shelf.retention.state()
                shelf.retention = mixture()
                shelf.retention.load(state)
            shelf.offer(facts(number, rng), is_expert=number % 5 == 0)
        return sorted(shelf.kept)

    assert run(break_at=-1) == run(break_at=411)
