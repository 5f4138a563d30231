"""Schedulers: frequencies, lists that are begun again, the table by hand, and that nothing is forgotten by a resume."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from roboloop.algos.guided.schedulers import (
    AfterConfig,
    ConditionalSchedule,
    FixedSchedule,
    HandcraftedSchedule,
    LearnedSchedule,
    QTable,
    ScheduleConfig,
    Scheduler,
    UniformSchedule,
    WeightedSchedule,
    make_scheduler,
)
from roboloop.core.config import override, to_dict
from roboloop.core.errors import ConfigError

TASKS = ("place", "reach", "grasp", "move", "release")
EVERY = [
    FixedSchedule(),
    UniformSchedule(),
    WeightedSchedule(),
    HandcraftedSchedule(lists=("reach grasp place", "place release")),
    ConditionalSchedule(after=(AfterConfig("", ("reach",)), AfterConfig("reach", ("grasp", "place"), (3.0, 1.0)))),
    LearnedSchedule(period=5, temperature=2.0, temperature_decay=0.9),
]


def episodes(scheduler: Scheduler, count: int, choices: int, first: int = 0) -> list[list[int]]:
    played = []
    for episode in range(first, first + count):
        history: list[int] = []
        for _ in range(choices):
            history.append(scheduler.choose(episode, history))
        played.append(history)
    return played


def frequencies(cfg: ScheduleConfig, count: int = 1000, choices: int = 5) -> np.ndarray:
    seen = Counter(task for played in episodes(make_scheduler(cfg, TASKS, 3), count, choices) for task in played)
    return np.array([seen[k] for k in range(len(TASKS))]) / (count * choices)


def test_a_fixed_schedule_is_one_task_and_the_main_one_unless_said_otherwise() -> None:
    assert frequencies(FixedSchedule(), 10).tolist() == [1, 0, 0, 0, 0]
    assert frequencies(FixedSchedule(task="move"), 10).tolist() == [0, 0, 0, 1, 0]


def test_uniform_choices_are_alike_and_half_of_the_weighted_ones_are_the_main_task() -> None:
    assert frequencies(UniformSchedule()) == pytest.approx([0.2] * 5, abs=0.02)
    assert frequencies(WeightedSchedule()) == pytest.approx([0.5] + [0.125] * 4, abs=0.02)
    assert frequencies(WeightedSchedule(main=0.2)) == pytest.approx([0.2] * 5, abs=0.02)
    assert make_scheduler(WeightedSchedule(), ("only",), 0).choose(0, []) == 0


def test_half_of_the_episodes_follow_a_list_that_is_tiled_to_their_length() -> None:
    cfg = HandcraftedSchedule(lists=("reach grasp place", "place release"))
    played = episodes(make_scheduler(cfg, TASKS, 1), 2000, 8)
    first, second = [1, 2, 0, 1, 2, 0, 1, 2], [0, 4] * 4
    counts = played.count(first) / 2000, played.count(second) / 2000
    assert counts == pytest.approx((0.25, 0.25), abs=0.03)
    others = [p for p in played if p not in (first, second)]
    assert np.mean(np.array(others) == 0) == pytest.approx(0.5, abs=0.02)


def test_with_certainty_every_episode_follows_a_list() -> None:
    cfg = HandcraftedSchedule(lists=("reach grasp place",), chance=1.0)
    assert episodes(make_scheduler(cfg, TASKS, 1), 50, 4) == [[1, 2, 0, 1]] * 50


def test_a_conditional_schedule_is_the_markov_chain_that_was_written() -> None:
    cfg = ConditionalSchedule(after=(AfterConfig("", ("reach",)), AfterConfig("reach", ("grasp", "place"), (3.0, 1.0))))
    played = np.array(episodes(make_scheduler(cfg, TASKS, 0), 4000, 3))
    assert (played[:, 0] == 1).all()
    assert Counter(played[:, 1].tolist())[2] / 4000 == pytest.approx(0.75, abs=0.02)
    after_grasp = played[played[:, 1] == 2, 2]
    shares = [np.mean(after_grasp == k) for k in range(5)]
    assert shares == pytest.approx([0.2] * 5, abs=0.03)


@pytest.mark.parametrize("cfg", EVERY, ids=lambda cfg: cfg.name)
def test_a_choice_depends_on_seed_episode_and_history_alone(cfg: ScheduleConfig) -> None:
    a, b = make_scheduler(cfg, TASKS, 7), make_scheduler(cfg, TASKS, 7)
    forwards = episodes(a, 30, 6)
    backwards = [episodes(b, 1, 6, first=e)[0] for e in reversed(range(30))]
    assert forwards == backwards[::-1]
    if cfg.name != "fixed":
        assert forwards != episodes(make_scheduler(cfg, TASKS, 8), 30, 6)


def test_the_table_by_hand() -> None:
    table = QTable(LearnedSchedule(period=2, gamma=0.5, temperature=1.0, temperature_decay=0.5), 3, seed=0)
    rewards = np.array([0.0, 1.0, 2.0, 4.0, 8.0])  # periods: steps 0 1, 2 3, and 4
    table.tell([1, 0, 2], rewards)
    returns = [0 + 0.5 + 2 / 4 + 4 / 8 + 8 / 16, 2 + 4 / 2 + 8 / 4, 8]
    assert table.values([]) == pytest.approx([0, 0.6 * returns[0], 0])
    assert table.values([1]) == pytest.approx([0.6 * returns[1], 0, 0])
    assert table.values([1, 0]) == pytest.approx([0, 0, 0.6 * returns[2]])
    table.tell([1, 1, 2], np.ones(5))
    assert table.values([])[1] == pytest.approx(0.4 * 0.6 * returns[0] + 0.6 * (2 - 0.5**4))
    assert table.values([2]) == [0, 0, 0]
    scaled = np.array(table.values([])) / 0.25  # two episodes: 1 * 0.5 ** 2
    assert table.probabilities([]) == pytest.approx(np.exp(scaled) / np.exp(scaled).sum())


def test_the_temperature_falls_to_its_least_and_huge_values_do_not_overflow() -> None:
    table = QTable(LearnedSchedule(period=1), 2, seed=0)
    assert table.temperature == 360.0
    for _ in range(20_000):
        table._episodes += 1
    assert table.temperature == pytest.approx(0.1)
    table.tell([1], np.array([1e6]))
    assert table.probabilities([]).tolist() == [0.0, 1.0]
    assert table.choose(0, []) == 1


def test_the_learned_schedule_finds_the_order_that_pays() -> None:
    """Reward comes only in the period after reach and then place."""
    scheduler = make_scheduler(LearnedSchedule(period=1, temperature=5.0, temperature_decay=0.97), TASKS, 0)
    paid = []
    for episode in range(300):
        (choices,) = episodes(scheduler, 1, 2, first=episode)
        paid.append(float(choices == [1, 0]))
        scheduler.tell(choices, np.array([0.0, paid[-1]]))
    assert np.mean(paid[:50]) < 0.3
    assert np.mean(paid[-50:]) > 0.9


@pytest.mark.parametrize("cfg", EVERY, ids=lambda cfg: cfg.name)
def test_a_resumed_scheduler_goes_on_as_one_that_never_stopped(cfg: ScheduleConfig) -> None:
    def play(scheduler: Scheduler, first: int, last: int) -> list[list[int]]:
        played = []
        for episode in range(first, last):
            (choices,) = episodes(scheduler, 1, 4, first=episode)
            scheduler.tell(choices, np.linspace(0, episode % 3, 20))
            played.append(choices)
        return played

    whole, begun, resumed = (make_scheduler(cfg, TASKS, 5) for _ in range(3))
    expected = play(whole, 0, 40)
    head = play(begun, 0, 17)
    resumed.load(json.loads(json.dumps(begun.state())))
    assert head + play(resumed, 17, 40) == expected
    assert resumed.state() == whole.state()


@pytest.mark.parametrize("cfg", EVERY, ids=lambda cfg: cfg.name)
def test_a_schedule_is_plain_data(cfg: ScheduleConfig) -> None:
    assert override(type(cfg)(), json.loads(json.dumps(to_dict(cfg)))) == cfg


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (FixedSchedule(task="plase"), r"schedule.task: unknown task 'plase'; did you mean 'place'\? \(its tasks are"),
        (HandcraftedSchedule(lists=("reach graps",)), "schedule.lists: unknown task 'graps'; did you mean 'grasp'"),
        (HandcraftedSchedule(), "schedule.lists needs at least one list"),
        (HandcraftedSchedule(lists=("place", " ")), "schedule.lists needs at least one list"),
        (ConditionalSchedule(after=(AfterConfig("mvoe", ("place",)),)), "'mvoe'; did you mean 'move'"),
        (ConditionalSchedule(after=(AfterConfig("move", ("place",), (1.0, 2.0)),)), "as many of both"),
        (ConditionalSchedule(after=(AfterConfig("move"),)), "as many of both"),
        (WeightedSchedule(main=1.5), r"schedule.main must lie in \[0, 1\], not 1.5"),
        (UniformSchedule(period=0), "schedule.period must be at least 1"),
        (LearnedSchedule(temperature=0.0), "schedule.temperature must be above 0"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_in_one_line(cfg: ScheduleConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_scheduler(cfg, TASKS, 0)
    assert "\n" not in str(error.value)
