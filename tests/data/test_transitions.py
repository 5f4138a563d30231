"""Thinning out is a way of reading: whole episodes stay on disk."""

import numpy as np
import pytest

from roboloop.core.errors import DataError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.data.transitions import every_kth
from tests.data.kit import episode_of, schema_of

LENGTHS = (25, 30, 3, 12)


@pytest.fixture
def dataset(tmp_path):
    with StoreWriter(tmp_path / "a", schema_of()) as writer:
        for number, length in enumerate(LENGTHS):
            episode, facts = episode_of(number, length)
            episode.obs[:, 0], episode.obs[:, 1] = number, np.arange(length + 1)
            writer.append(episode, facts)
    return Dataset.open(tmp_path / "a")


def test_each_kth_transition_of_an_episode_is_kept_with_its_true_successor(dataset):
    some = every_kth(dataset, 10, seed=0)
    for number, length in enumerate(LENGTHS):
        mine = some.obs[:, 0] == number
        step = some.obs[mine, 1].astype(int)
        assert step[0] < min(10, length)
        assert (np.diff(step) == 10).all()
        assert step[-1] + 10 >= length
        assert (some.next_obs[mine, 1] == step + 1).all()
        stored = dataset.episode(number)
        for name in ("action", "raw_reward", "terminated", "truncated"):
            assert np.array_equal(getattr(some, name)[mine], getattr(stored, name)[step])


def test_the_offset_is_drawn_for_each_episode_and_follows_from_the_seed(dataset):
    firsts = {int(every_kth(dataset, 10, seed, np.array([1])).obs[0, 1]) for seed in range(40)}
    assert firsts == set(range(10))
    assert np.array_equal(every_kth(dataset, 7, 3).obs, every_kth(dataset, 7, 3).obs)
    alone, among = every_kth(dataset, 7, 3, np.array([1])), every_kth(dataset, 7, 3)
    assert np.array_equal(alone.obs, among.obs[among.obs[:, 0] == 1])


def test_each_first_one_is_everything(dataset):
    assert len(every_kth(dataset, 1, seed=0).action) == sum(LENGTHS)


def test_a_rate_that_keeps_nothing_is_refused(dataset):
    with pytest.raises(DataError, match="each 0-th"):
        every_kth(dataset, 0, seed=0)
