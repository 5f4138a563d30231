"""Meta-World: equal to the original step by step, seeded, solved by its experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make, scripted_policy
from roboloop.envs.headless import prefer_egl
from roboloop.envs.metaworld.suite import MT10, MetaWorldEnvConfig
from roboloop.envs.metaworld.suite import TASKS as METAWORLD

prefer_egl()
pytest.importorskip("metaworld")
pytestmark = pytest.mark.filterwarnings("ignore:Constant")

FULL_EPISODES = ("reach-v3", "push-v3", "peg-insert-side-v3", "door-open-v3", "handle-pull-v3")
REMEMBERING = ("bin-picking-v3", "basketball-v3", "pick-place-wall-v3", "assembly-v3")
"""Tasks whose rewards keep fields from step to step."""


def original(task: str, reward_version: str = "v2") -> Any:
    """Return plain Meta-World with the goal shown and drawn from the seed."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env: Any = ALL_V3_ENVIRONMENTS[task](reward_function_version=reward_version)
    env._partially_observable = False
    del env.sawyer_observation_space
    env._set_task_called = env.seeded_rand_vec = True
    return env


def reset_original(env: Any, seed: int) -> Array:
    """Draw a goal as a seeded reset does, then freeze it as Meta-World's benchmarks do."""
    env.seed(seed)
    env._freeze_rand_vec = False
    env.reset()
    env._freeze_rand_vec = True
    obs: Array = env.reset()[0]
    return obs


NO_MEMORY = np.zeros((1, 0), np.float32)


def expert_action(expert: Any, obs: Array, rng: np.random.Generator) -> Array:
    """Return the expert's action for one observation."""
    action: Array = expert.act(obs[None], NO_MEMORY, False, rng).action[0]
    return action


def mixed_actions(task: str, obs: Array, step: int, rng: np.random.Generator) -> Array:
    """Return the expert's action most of the time, so that objects are touched, and random ones between."""
    if step % 60 >= 45:
        return rng.uniform(-1, 1, 4).astype(np.float32)
    noise = rng.normal(size=4) * 0.2 * (step % 5 == 0)
    action: Array = np.clip(expert_action(scripted_policy(task), obs, rng) + noise, -1, 1).astype(np.float32)
    return action


def assert_equal_to_original(task: str, steps: int, seed: int, reward_version: str = "v2") -> None:
    """Compare observations, rewards and success bit for bit over one episode."""
    plain = original(task, reward_version)
    ours: Any = make(MetaWorldEnvConfig(id=f"metaworld/{task}", reward_version=reward_version))
    assert ours.world._arm._shortcut, "the first substep is not cut short"
    rng = np.random.default_rng(seed)
    ours.reset(seed + 1)  # history must not matter
    obs = reset_original(plain, seed)
    assert np.array_equal(ours.reset(seed), obs.astype(np.float32))
    for step in range(steps):
        action = mixed_actions(task, obs, step, rng)
        obs, reward, _, truncated, info = plain.step(action)
        seen, our_reward, our_terminated, our_truncated, our_info = ours.step(action)
        assert np.array_equal(seen, obs.astype(np.float32)), f"observation differs at step {step}"
        assert our_reward == float(reward), f"reward differs at step {step}"
        assert our_info["success"] == float(info["success"]), f"success differs at step {step}"
        assert (our_terminated, our_truncated) == (False, truncated)


@pytest.mark.parametrize("task", METAWORLD)
def test_every_task_equals_the_original_bit_for_bit(task: str) -> None:
    assert_equal_to_original(task, steps=90, seed=len(task))


@pytest.mark.parametrize("task", FULL_EPISODES)
def test_full_episodes_equal_the_original_bit_for_bit(task: str) -> None:
    assert_equal_to_original(task, steps=500, seed=123)


@pytest.mark.parametrize("task", ["reach-v3", "pick-place-v3", *REMEMBERING])
def test_the_first_reward_version_equals_the_original_too(task: str) -> None:
    assert_equal_to_original(task, steps=120, seed=5, reward_version="v1")


@pytest.mark.parametrize("task", ["drawer-open-v3", "window-open-v3", "peg-insert-side-v3", "box-close-v3"])
def test_many_resets_equal_the_original(task: str) -> None:
    plain, ours = original(task), make(EnvConfig(id=f"metaworld/{task}"))
    for seed in range(20, 32):
        assert np.array_equal(ours.reset(seed), reset_original(plain, seed).astype(np.float32))


@pytest.mark.parametrize("reward_version", ["v1", "v2"])
@pytest.mark.parametrize("task", REMEMBERING)
def test_a_restored_episode_goes_on_bit_for_bit_while_the_expert_works(task: str, reward_version: str) -> None:
    cfg = MetaWorldEnvConfig(id=f"metaworld/{task}", reward_version=reward_version)
    env, expert, rng = make(cfg), scripted_policy(task), np.random.default_rng(0)
    obs, actions, rewards = env.reset(4), [], []
    for step in range(160):
        if step == 80:
            state = env.get_state()
        actions.append(expert_action(expert, obs, rng))
        obs, reward, *_ = env.step(actions[-1])
        rewards.append(reward)
    fresh = make(cfg)
    fresh.set_state(state)
    again = [fresh.step(action) for action in actions[80:]]
    assert [step[1] for step in again] == rewards[80:]
    assert again[-1][0].tobytes() == obs.tobytes()


def test_goals_follow_the_seed_and_not_the_global_generator() -> None:
    env = make(EnvConfig(id="metaworld/push-v3"))
    np.random.seed(1)  # the generator that Meta-World draws from by default
    first = env.reset(3)
    np.random.seed(2)
    assert np.array_equal(env.reset(3), first)
    assert not np.array_equal(env.reset(4)[36:], first[36:])


def test_a_fixed_goal_stays_over_seeds_and_instances() -> None:
    cfg = MetaWorldEnvConfig(id="metaworld/reach-v3", goal_mode="fixed")
    env = make(cfg)
    goals = [env.reset(seed)[36:] for seed in (1, 2)] + [make(cfg).reset(3)[36:]]
    assert np.array_equal(goals[0], goals[1])
    assert np.array_equal(goals[0], goals[2])
    assert env.spec.protocol["goal_mode"] == "fixed"


def test_the_goal_is_visible_and_the_protocol_is_complete() -> None:
    env = make(EnvConfig(id="metaworld/0"))
    assert env.reset(0)[36:].any()
    protocol = env.spec.protocol
    assert protocol["suite"] == "metaworld 3.1.1"
    assert (protocol["task"], protocol["reward_version"], protocol["horizon"]) == ("reach-v3", "v2", 500)


def test_numbers_name_the_tasks_of_mt10() -> None:
    for number, task in enumerate(MT10):
        assert make(EnvConfig(id=f"metaworld/{number}")).spec.protocol["task"] == task


@pytest.mark.parametrize("task", MT10)
def test_the_expert_succeeds_and_success_does_not_end_the_episode(task: str) -> None:
    env, expert, rng = make(EnvConfig(id=f"metaworld/{task}")), scripted_policy(task), np.random.default_rng(0)
    solved = 0
    for seed in (1, 2):
        obs, success = env.reset(seed), 0.0
        for _ in range(250):
            obs, _, terminated, truncated, info = env.step(expert_action(expert, obs, rng))
            assert not terminated
            assert not truncated
            success = max(success, info["success"])
        solved += success == 1.0
    assert solved >= 1


def test_evaluation_has_its_own_horizon() -> None:
    cfg = EnvConfig(id="metaworld/reach-v3", max_episode_steps=100)
    assert make(cfg).spec.max_episode_steps == 100
    assert make(cfg, evaluation=True).spec.max_episode_steps == 500


def test_the_expert_is_a_policy_without_memory_whose_weights_never_change() -> None:
    expert, memory = scripted_policy("reach-v3"), np.zeros((2, 0), np.float32)
    decision = expert.act(np.zeros((2, 39), np.float32), memory, True, np.random.default_rng(0))
    assert (expert.memory_size, expert.version) == (0, 0)
    assert (decision.action.shape, decision.action.dtype) == ((2, 4), np.float32)
    assert decision.memory is memory
    assert decision.log_prob is None


def test_an_unknown_expert_is_named_with_its_nearest() -> None:
    with pytest.raises(ConfigError, match="reach-v3"):
        scripted_policy("reach-v33")
