"""Episodes come in the order in which they were begun, so that counting them off does not prefer short ones."""

import pytest

from roboloop.data.attempts import Attempts
from tests.data.recording import Counting


def play(envs, steps, rollouts, faults=None):
    """Return all that is settled; ``faults`` says what goes wrong in which rollout."""
    attempts, seen = Attempts(envs.num_envs), []
    for rollout in range(rollouts):
        seen += attempts.add(envs.collect(steps, **(faults or {}).get(rollout, {})), envs.steps)
    return attempts, seen


@pytest.mark.parametrize("steps", [1, 7, 64])
def test_an_episode_waits_for_those_that_were_begun_before_it(steps):
    # environment 1 plays ten episodes in the time of one of environment 0
    envs = Counting(2, lambda env, episode: 50 if env == 0 else 5)
    attempts, seen = play(envs, steps, -(-120 // steps))
    assert [attempt.number for attempt in seen] == list(range(len(seen)))
    assert len(seen) == attempts.settled == 4 + (1 if steps * -(-120 // steps) >= 150 else 0)
    assert [len(a.episode.reward) for a in seen] == [50, 5, 50, 5][: len(seen)]
    for number, episode, end in seen:
        assert (number % 2, number // 2) == (end["env"], end["episode"]) == tuple(episode.obs[0, :2])
        assert episode.obs[-1, 2] == end["length"] == len(episode.reward)


def test_one_environment_gives_its_episodes_as_they_end():
    _, seen = play(Counting(1, lambda env, episode: 1 + episode), 4, 6)
    assert [(a.number, int(a.end["length"])) for a in seen] == [(n, n + 1) for n in range(6)]


def test_an_episode_that_was_lost_leaves_a_gap_and_holds_nobody_up():
    _, seen = play(Counting(2, lambda env, episode: 10), 10, 3, {0: {"lost": [(1, 4)]}})
    assert [a.number for a in seen] == [0, 2, 3, 4, 5]
    assert all(len(a.episode.reward) == 10 for a in seen)


def test_an_episode_that_vanished_with_its_worker_is_noticed_by_its_successor():
    _, seen = play(Counting(2, lambda env, episode: 10), 5, 8, {1: {"cut": (1,)}})
    assert [a.number for a in seen] == [0, 2, 3, 4, 5, 6, 7]
    assert all(len(a.episode.reward) == 10 for a in seen)
