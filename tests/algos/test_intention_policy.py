"""A policy with an intention for each task: who acts when, in which process, and by whose schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roboloop.algos.guided.intention_policy import IntentionPolicy, as_set, showing_task
from roboloop.algos.guided.schedulers import FixedSchedule, HandcraftedSchedule, LearnedSchedule, ScheduleConfig
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import make_mtsac
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec

TASKS = ("place", "reach", "grasp")
SPEC = EnvSpec((5,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 1.0), 12, tasks=TASKS)
LISTED = HandcraftedSchedule(period=4, chance=1.0, lists=("reach grasp place",))


def policy_of(cfg: ScheduleConfig) -> IntentionPolicy:
    sac = make_mtsac(
        MTSACConfig(hidden=(16,), head_hidden=(8,), batch_size=12, processes=1), as_set(SPEC, TASKS), 1, seed=0
    )
    return IntentionPolicy(sac.policy, cfg, TASKS, SPEC.max_episode_steps, seed=0)


def by_task(policy: IntentionPolicy, obs: Any, task: int) -> Any:
    seen = showing_task(obs, np.full(len(obs), task), len(TASKS))
    none = np.zeros((len(obs), 0), np.float32)
    return policy.actor.act(seen, none, False, np.random.default_rng(0)).action


def played(policy: IntentionPolicy, obs: Any, steps: int) -> list[int]:
    """Return which task's likeliest action was taken at each step of an episode without exploring."""
    memory, rng = np.zeros((len(obs), policy.memory_size), np.float32), np.random.default_rng(0)
    found = []
    for _ in range(steps):
        action, memory, *_ = policy.act(obs, memory, False, rng)
        (task,) = (k for k in range(len(TASKS)) if np.allclose(action, by_task(policy, obs, k), atol=1e-6))
        found.append(task)
    return found


def test_an_observation_ends_with_its_task() -> None:
    assert showing_task(np.ones((2, 1), np.float32), np.array([2, 0]), 3).tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    spec = as_set(SPEC, TASKS)
    assert (spec.obs_shape, spec.own_tasks) == ((8,), TASKS)


def test_without_exploring_the_main_task_acts_and_nothing_is_chosen() -> None:
    policy, obs = policy_of(LISTED), np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    assert played(policy, obs, 12) == [0] * 12
    memory = np.zeros((3, policy.memory_size), np.float32)
    assert not policy.act(obs, memory, False, np.random.default_rng(0)).memory.any()


def test_exploring_follows_the_schedule() -> None:
    policy, obs = policy_of(LISTED), np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    memory, rng = np.zeros((2, policy.memory_size), np.float32), np.random.default_rng(0)
    for _ in range(12):
        memory = policy.act(obs, memory, True, rng).memory
    assert policy.intentions.choices(memory[0]) == [1, 2, 0]
    assert policy.intentions.steps(memory[0]) == 12


def test_a_forced_schedule_is_followed_without_exploring_and_its_last_task_goes_on() -> None:
    policy, obs = policy_of(FixedSchedule()), np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    led = policy.with_schedule([("grasp", 2), ("reach", 3), ("place", 0)])
    assert played(led, obs, 12) == [2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert played(policy.with_schedule([("reach", 0)]), obs, 4) == [1] * 4
    with pytest.raises(ConfigError, match="--schedule: unknown task 'gasp'; did you mean 'grasp'"):
        policy.with_schedule([("gasp", 2), ("reach", 0)])


def test_another_process_acts_the_same_by_blueprint_and_weights() -> None:
    policy = policy_of(LearnedSchedule(period=4, temperature=0.1, keep=0.0))
    policy.scheduler.tell([2, 2, 2], np.ones(12))
    sent: Any = build_policy(policy.blueprint())
    flat = np.empty(policy.num_weights, np.float32)
    policy.write_weights(flat)
    sent.read_weights(flat, 3)
    obs = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    memory, streams = np.zeros((4, policy.memory_size), np.float32), [np.random.default_rng(0) for _ in range(2)]
    for _ in range(6):
        here, there = (p.act(obs, memory, True, rng) for p, rng in zip((policy, sent), streams, strict=True))
        assert np.array_equal(here.action, there.action)
        assert np.array_equal(here.memory, there.memory)
        memory = here.memory
    assert sent.version == 3
    assert policy.intentions.choices(memory[0])[0] == 2  # the learned table travelled too


def test_a_schedule_with_an_unknown_task_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"schedule.lists: unknown task 'reech'; did you mean 'reach'"):
        policy_of(HandcraftedSchedule(lists=("reech place",)))
