import numpy as np
import pytest

from roboloop.algos.policy import UniformPolicy
from roboloop.core.state import equal
from roboloop.core.types import EnvSpec
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.sample.serial import SerialSampler
from roboloop.sample.stack import FrameStack

CONFIG = EnvConfig(id="gym/Pendulum-v1", max_episode_steps=7)


def sampler(num_envs=2, seed=0, frame_stack=1):
    return SerialSampler([make(CONFIG) for _ in range(num_envs)], seed, frame_stack)


def policy(s):
    return UniformPolicy(s.spec)


def fields(rollout):
    return {k: v for k, v in rollout._asdict().items() if k != "episodes"}


def test_next_obs_is_the_true_successor_never_a_reset_observation():
    s = sampler()
    rollout = s.collect(policy(s), steps=20)
    ended = rollout.terminated | rollout.truncated
    follows = (rollout.next_obs[:-1] == rollout.obs[1:]).all(-1)
    assert (follows == ~ended[:-1]).all()
    assert ended.sum() == 2 * 2


def test_episodes_are_counted_with_length_and_return():
    s = sampler(num_envs=1)
    rollout = s.collect(policy(s), steps=15)
    assert [(e.episode, e.length) for e in rollout.episodes] == [(0, 7), (1, 7)]
    assert rollout.episodes[0].episode_return == pytest.approx(rollout.reward[:7, 0].sum(), rel=1e-6)
    assert np.isnan(rollout.episodes[0].success)


def test_equal_seeds_give_equal_rollouts_and_other_seeds_others():
    a, b, c = sampler(seed=1), sampler(seed=1), sampler(seed=2)
    first, second, third = (fields(s.collect(policy(s), steps=20)) for s in (a, b, c))
    assert equal(first, second)
    assert not equal(first, third)


def test_environments_differ_from_each_other():
    s = sampler()
    rollout = s.collect(policy(s))
    assert not (rollout.obs[0, 0] == rollout.obs[0, 1]).all()


@pytest.mark.parametrize("steps", [0, 3, 7, 11])
def test_a_restored_sampler_goes_on_bit_for_bit(steps):
    a, b = sampler(frame_stack=3), sampler(frame_stack=3)
    if steps:
        a.collect(policy(a), steps)
    b.load(a.state())
    assert equal(fields(a.collect(policy(a), 20)), fields(b.collect(policy(b), 20)))


def test_a_stack_begins_with_copies_of_the_first_observation():
    stack = FrameStack(EnvSpec((1,), "float32", (-1.0,), (1.0,), 10), num_envs=1, frames=3)
    stack.reset(0, np.array([5.0]))
    assert stack.stacked[0, :, 0].tolist() == [5, 5, 5]
    stack.push(0, np.array([6.0]))
    assert stack.stacked[0, :, 0].tolist() == [5, 5, 6]
    assert stack.newest[0, 0] == 6
