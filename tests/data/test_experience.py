"""Episodes out of a replay journal: whole, in order, each step once, wherever the records were cut."""

import numpy as np
import pytest

from roboloop.data import journal as journal_files
from roboloop.data.experience import Streams
from roboloop.data.journal import Journal
from tests.data.test_replay import feed, make, one_step


def journaled(tmp_path, num_envs=1, capacity=64):
    replay = make(num_envs=num_envs, capacity=capacity)
    journal = Journal(tmp_path / "journal", 1 << 20)
    replay.attach(journal)
    return replay


def read(tmp_path, replay):
    frontier = replay.commit()
    streams = Streams("toy", seed=0)
    return list(streams.episodes(journal_files.read(tmp_path / "journal", frontier))), streams.left_out


@pytest.mark.parametrize("capacity", [16, 64])  # the smaller ring spills in the middle of episodes
def test_episodes_are_whole_wherever_records_begin(tmp_path, capacity):
    replay = journaled(tmp_path, num_envs=2, capacity=capacity)
    feed(replay, [5, 3], num_envs=2)
    replay.commit()
    feed(replay, [9, 4], start=2, num_envs=2, terminated=False, close_last=False)
    found, left_out = read(tmp_path, replay)
    assert [(facts.env, facts.episode, facts.length) for _, facts in found] == [
        (env, number, length) for number, length in enumerate([5, 3, 9]) for env in (0, 1)
    ]
    assert [facts.step for _, facts in found] == [10, 10, 16, 16, 34, 34]
    assert left_out == {"steps of episodes that had not ended": 8}
    for episode, facts in found:
        begin = facts.episode * 100 + facts.env * 10_000
        assert episode.obs[:, 0].tolist() == list(range(begin, begin + facts.length + 1))
        assert episode.reward.tolist() == list(range(facts.length))
        assert facts.episode_return == sum(range(facts.length))
        assert bool(episode.terminated[-1]) == (facts.episode < 2)
        assert (episode.terminated | episode.truncated).sum() == 1


def test_an_episode_that_was_cut_ends_as_truncated_at_the_last_observation_seen(tmp_path):
    for name, between in (("one record", False), ("two records", True)):
        replay = journaled(tmp_path / name)
        feed(replay, [3], close_last=False)
        if between:
            replay.commit()
        replay.add(one_step(np.array([[500.0]], np.float32), 1.0, True, True, cut=(0,)))
        (cut, _), (after, _) = read(tmp_path / name, replay)[0]
        assert cut.obs[:, 0].tolist() == [0, 1, 2, 3]
        assert cut.truncated.tolist() == [False, False, True]
        assert not cut.terminated.any()
        assert after.obs[:, 0].tolist() == [500, 501]
