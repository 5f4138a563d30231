"""Tasks of running episodes live in the memory of the policy that acts."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.algos.guided.intentions import Intentions
from roboloop.algos.guided.schedulers import FixedSchedule, HandcraftedSchedule, UniformSchedule, make_scheduler
from roboloop.core.errors import ConfigError

TASKS = ("place", "reach", "grasp")


def played(intentions: Intentions, memory: np.ndarray, rng: np.random.Generator, steps: int) -> np.ndarray:
    tasks = []
    for _ in range(steps):
        now, memory[:] = intentions.advance(memory, rng)
        tasks.append(now)
    return np.array(tasks).T


def test_a_task_is_kept_for_a_period_and_a_list_is_followed_row_by_row() -> None:
    cfg = HandcraftedSchedule(period=4, lists=("reach grasp place",), chance=1.0)
    intentions = Intentions(make_scheduler(cfg, TASKS, 0), cfg.period, max_episode_steps=18)
    assert intentions.memory_size == 2 + 5
    memory = np.zeros((2, intentions.memory_size), np.float32)
    rng = np.random.default_rng(0)
    first = played(intentions, memory, rng, 6)
    memory[1] = 0  # its next episode begins
    second = played(intentions, memory, rng, 12)
    assert first.tolist() == [[1, 1, 1, 1, 2, 2]] * 2
    assert second[0].tolist() == [2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert second[1].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]
    assert intentions.choices(memory[0]) == [1, 2, 0, 1, 2]
    assert intentions.choices(memory[1]) == [1, 2, 0]
    assert intentions.choices(np.zeros(7)) == []
    assert intentions.steps_by_choice(memory[0]) == [4, 4, 4, 4, 2]
    assert intentions.steps_by_choice(np.zeros(7)) == []


def test_episodes_draw_keys_of_their_own_and_memory_is_all_that_a_resume_needs() -> None:
    cfg = UniformSchedule(period=2)

    def play(resume: bool) -> list[list[int]]:
        rng = np.random.default_rng(1)
        intentions = Intentions(make_scheduler(cfg, TASKS, 7), cfg.period, 20)
        memory = np.zeros((30, intentions.memory_size), np.float32)
        head = played(intentions, memory, rng, 7)
        if resume:
            intentions = Intentions(make_scheduler(cfg, TASKS, 7), cfg.period, 20)
            memory = memory.copy()
        return np.hstack([head, played(intentions, memory, rng, 13)]).tolist()

    whole = play(resume=False)
    assert whole == play(resume=True)
    assert len({tuple(row) for row in whole}) > 25
    assert np.mean(np.array(whole) == 1) == pytest.approx(1 / 3, abs=0.1)


def test_who_asks_on_after_the_end_keeps_the_last_task() -> None:
    cfg = HandcraftedSchedule(period=2, lists=("reach grasp place",), chance=1.0)
    intentions = Intentions(make_scheduler(cfg, TASKS, 0), cfg.period, max_episode_steps=4)
    memory = np.zeros((1, intentions.memory_size), np.float32)
    assert played(intentions, memory, np.random.default_rng(0), 8).tolist() == [[1, 1, 2, 2, 2, 2, 2, 2]]


def test_an_episode_longer_than_numbers_can_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long to be scheduled"):
        Intentions(make_scheduler(FixedSchedule(), TASKS, 0), 10, 1 << 24)
