"""Which episodes are chosen: by counting, the same in every repetition."""

import numpy as np
import pytest

from roboloop.core.config import override
from roboloop.core.errors import ConfigError
from roboloop.data.config import RecordConfig
from roboloop.data.selection import ExpertBar, Selection
from tests.data.recording import Counting, assert_sound, names, recorder


def selection(num_envs, seed=0, **record):
    return Selection(override(RecordConfig(), record), num_envs, seed)


def test_streams_are_spread_over_the_environments():
    chooses = selection(16, streams=4)
    assert [env for env in range(16) if chooses.begin(env)] == [0, 4, 8, 12]


def test_each_kth_episode_is_chosen_and_not_all_environments_at_the_same_time():
    chooses = selection(4, every=4)
    chosen = np.array([[chooses.begin(env) for env in range(4)] for _ in range(12)])
    assert (chosen.sum(0) == 3).all()
    assert (chosen.sum(1) == 1).all()


def test_one_per_iteration_visits_every_environment_in_turns_that_the_seed_fixes(tmp_path):
    def visited(seed):
        envs = Counting(5, lambda env, episode: 6 + env)
        made = recorder(tmp_path / f"{seed}-{np.random.random()}", envs, 4, seed=seed, select="one_per_iteration")
        for _ in range(200):
            made.offer(envs.collect(4), envs.steps)
            made.drain()
        dataset = made.finish()
        assert_sound(dataset)
        return [env for env, _ in names(dataset)]

    first = visited(3)
    assert first == visited(3)
    assert first != visited(4)
    assert sorted(first[:5]) == [0, 1, 2, 3, 4]
    assert first[5:10] == first[:5]


def test_choices_go_on_as_they_would_have():
    whole, broken = selection(3, select="one_per_iteration"), selection(3, select="one_per_iteration")
    draws = np.random.default_rng(0).integers(0, 3, 100).tolist()
    expected = [whole.begin(env) for env in draws]
    first = [broken.begin(env) for env in draws[:40]]
    resumed = selection(3, select="one_per_iteration")
    resumed.load(broken.state())
    assert first + [resumed.begin(env) for env in draws[40:]] == expected


def bar(**record):
    return ExpertBar(override(RecordConfig(), record))


def test_an_expert_is_at_least_as_good_as_most_of_the_last_episodes():
    by_quantile = bar(expert_at=0.9, expert_window=10)
    assert not any(by_quantile.passes(x) for x in range(10))  # nothing to compare with yet
    assert not by_quantile.passes(5)
    assert by_quantile.passes(9)
    resumed = bar(expert_at=0.9, expert_window=10)
    resumed.load(by_quantile.state())
    assert resumed.height == by_quantile.height == 9


def test_an_expert_reaches_a_return_or_a_share_of_the_best_evaluation():
    assert [bar(expert_by="return", expert_at=50.0).passes(x) for x in (49, 50)] == [False, True]
    by_eval = bar(expert_by="best_eval", expert_at=0.9)
    assert not by_eval.passes(1e9)
    for score in (80, 100, 60):
        by_eval.saw_evaluation(score)
    assert [by_eval.passes(x) for x in (89, 90)] == [False, True]
    negative = bar(expert_by="best_eval", expert_at=0.9)
    negative.saw_evaluation(-100)
    assert [negative.passes(x) for x in (-111, -110)] == [False, True]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"keep": "mixture"}, "record.mixture"),
        ({"keep": "all", "mixture": [{"keep": "last", "percent": 100}]}, "record.mixture"),
        ({"keep": "mixture", "mixture": [{"keep": "last", "percent": 70}]}, "add up to 70 %"),
        ({"keep": "reservoir", "percent": 10}, "record.percent"),
        ({"streams": 9}, "record.streams 9"),
        ({"select": "one_per_iteration", "every": 2}, "record.every"),
        ({"expert_at": 90}, "record.expert_at"),
        ({"ring_mb": -1}, "record.ring_mb"),
    ],
)
def test_contradictions_are_refused(record, says):
    with pytest.raises(ConfigError, match=says):
        override(RecordConfig(), record).check(num_envs=8)


def test_a_mixture_is_written_as_a_list_and_its_keys_are_checked():
    cfg = override(RecordConfig(), {"keep": "mixture", "mixture": [{"keep": "expert"}, {"keep": "reservoir"}]})
    assert [part.keep for part in cfg.mixture] == ["expert", "reservoir"]
    with pytest.raises(ConfigError, match=r"record\.mixture\.kep"):
        override(RecordConfig(), {"mixture": [{"kep": "expert"}]}, "record.")


@pytest.mark.parametrize("odd", [{"last": [{}], "best_eval": None}, {"last": [], "best_eval": []}])
def test_returns_of_a_saved_bar_are_numbers(odd):
    bar = ExpertBar(RecordConfig())
    with pytest.raises(TypeError):
        bar.load(odd)
