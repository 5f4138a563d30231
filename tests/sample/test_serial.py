import numpy as np
import pytest

from roboloop.algos.policy import UniformPolicy
from roboloop.core.state import equal
from roboloop.core.types import Decision, EnvSpec
from roboloop.data.rollouts import COLUMNS
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.sample.acting import FrameStack
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import EnvBroken, plans
from roboloop.sample.serial import SerialSampler
from tests.sample.kit import LinearPolicy

CONFIG = EnvConfig(id="gym/Pendulum-v1", max_episode_steps=7)


def sampler(num_envs=2, seed=0, frame_stack=1, steps=20, groups=1, stacked=False, env=CONFIG, restarts=3):
    spec = make(env).spec
    shape = RolloutShape(spec, steps, num_envs, frame_stack, stacked, memory_size=2)
    return SerialSampler(lambda _: make(env), plans(num_envs, groups, seed), shape, restarts)


def policy(obs_dim=3, action_dim=1):
    return LinearPolicy(obs_dim, action_dim)


def fields(rollout):
    ends = [repr(end) for end in rollout.episodes]  # as text: an unknown success is NaN, which equals nothing
    return {**{name: getattr(rollout, name) for name in COLUMNS}, "episodes": ends, "cut": rollout.cut}


def test_what_follows_a_step_is_the_next_row_or_the_true_last_observation():
    s = sampler()
    rollout = s.collect(policy())
    ended = rollout.terminated | rollout.truncated
    assert ended.sum() == 2 * 2 == len(rollout.episodes)
    for end in rollout.episodes:
        assert ended[end.t, end.env]
        # pendulum's angle moves by at most 0.4 rad a step; a reset may put it anywhere
        moved = np.abs(end.last_obs[:2] - rollout.obs[end.t, end.env, :2]).max()
        assert moved < 0.45
        assert not np.array_equal(end.last_obs, rollout.obs[end.t + 1, end.env])


def test_episodes_are_counted_with_length_and_return():
    rollout = sampler(num_envs=1, steps=15).collect(policy())
    assert [(e.episode, e.length, e.t) for e in rollout.episodes] == [(0, 7, 6), (1, 7, 13)]
    assert rollout.episodes[0].episode_return == pytest.approx(rollout.reward[:7, 0].sum(), rel=1e-6)
    assert np.isnan(rollout.episodes[0].success)


def test_memory_is_zero_where_an_episode_begins_and_carried_over_between_rollouts():
    s = sampler(num_envs=1, steps=5)
    first, second = s.collect(policy()), None
    memory = 0.0
    for t in range(5):
        memory = 0.5 * memory + first.obs[t, 0, 0]
    second = s.collect(policy())
    assert (first.memory == 0).all()
    np.testing.assert_allclose(second.memory[0], memory, rtol=1e-6)


def test_the_value_of_a_truncated_episodes_last_observation_uses_its_own_memory():
    rollout = sampler(num_envs=1, steps=7).collect(policy())
    end = rollout.episodes[0]
    memory = np.zeros((1, 2), np.float32)
    for t in range(7):
        memory = policy().act(rollout.obs[t], memory, False, None).memory
    assert end.last_value == pytest.approx(float(policy().act(end.last_obs[None], memory, False, None).value[0]))
    assert rollout.value[-1, 0] == pytest.approx(float(policy().act(rollout.obs[-1], 0 * memory, False, None).value[0]))


def test_equal_seeds_give_equal_rollouts_and_other_seeds_others():
    first, second, third = (fields(sampler(seed=s).collect(policy())) for s in (1, 1, 2))
    assert equal(first, second)
    assert not equal(first, third)


def test_environments_and_groups_differ_from_each_other():
    rollout = sampler(num_envs=4, groups=2).collect(policy())
    assert len({rollout.obs[0, env].tobytes() for env in range(4)}) == 4
    assert len({rollout.action[0, env].tobytes() for env in range(4)}) == 4


@pytest.mark.parametrize("collects", [0, 1, 2])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_restored_sampler_goes_on_bit_for_bit(collects, stacked):
    a, b = (sampler(frame_stack=3, steps=5, groups=2, stacked=stacked) for _ in range(2))
    for _ in range(collects):
        a.collect(policy())
    b.load(a.state())
    assert equal(fields(a.collect(policy())), fields(b.collect(policy())))


def test_observations_are_kept_with_their_history_where_that_is_asked():
    rollout = sampler(frame_stack=3, stacked=True, steps=4).collect(policy())
    assert rollout.obs.shape == (5, 2, 3, 3)
    assert (rollout.obs[2, :, 1] == rollout.obs[1, :, 2]).all()


def test_a_stack_begins_with_copies_of_the_first_observation():
    stack = FrameStack(EnvSpec((1,), np.dtype("float32"), (-1.0,), (1.0,), 10), num_envs=1, frames=3)
    stack.reset(0, np.array([5.0]))
    assert stack.stacked[0, :, 0].tolist() == [5, 5, 5]
    stack.push(0, np.array([6.0]))
    assert stack.stacked[0, :, 0].tolist() == [5, 5, 6]
    assert stack.newest[0, 0] == 6


@pytest.fixture
def permits(tmp_path, monkeypatch):
    """How often environments may misbehave."""
    monkeypatch.setenv("MISBEHAVE", str(tmp_path))
    return lambda count: [(tmp_path / str(i)).touch() for i in range(count)]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "the gripper fell off"),
        ("nan", "not finite"),
        ("nan-reward", "the reward nan"),
        ("shape", r"shape \(5,\)"),
    ],
)
def test_a_broken_environment_is_named_and_replaced_and_nothing_crosses_the_break(how, message, permits):
    permits(1)
    s = sampler(num_envs=1, steps=8, env=EnvConfig(id=f"gym/tests.sample.kit:Misbehave-{how}-v0"))
    rollout = s.collect(policy())
    # steps 1 2 3 of the first episode, which breaks at its fourth, then a new one from its beginning
    assert rollout.obs[:-1, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert rollout.truncated[:, 0].tolist() == [False, False, True] + [False] * 5
    (end,) = rollout.episodes
    assert (end.t, end.lost, end.last_obs[0], end.length) == (2, True, 3.0, 3)
    assert np.isfinite(rollout.obs).all()
    (said,) = s.faults()
    import re

    assert re.search(message, said)
    assert "env 0" in said
    assert s.stats() == {"sample/env_faults": 1.0}


def test_numbers_beside_a_picture_that_are_not_finite_are_the_environments_fault(permits):
    permits(1)
    s = sampler(num_envs=1, steps=8, env=EnvConfig(id="gym/tests.sample.kit:Filmed-v0"))
    rollout = s.collect(UniformPolicy(s.spec))
    (said,) = s.faults()
    assert "env 0 broke: returned an observation that is not finite" in said
    assert np.isfinite(rollout.obs["vector"]).all()


def test_an_environment_that_breaks_in_the_first_step_of_a_rollout_is_cut_before_it(permits):
    s = sampler(num_envs=2, steps=3, env=EnvConfig(id="gym/tests.sample.kit:Misbehave-raise-v0"))
    s.collect(policy())
    permits(1)
    rollout = s.collect(policy())
    assert rollout.cut == (0,)
    assert rollout.obs[:-1, 0, 0].tolist() == [0, 1, 2]
    assert (rollout.memory[0] == 0).all()
    assert not (rollout.memory[1] == 0).all()


def test_an_environment_that_breaks_too_often_ends_the_run_with_its_traceback(permits):
    permits(10)
    s = sampler(num_envs=1, steps=20, env=EnvConfig(id="gym/tests.sample.kit:Misbehave-raise-v0"), restarts=2)
    with pytest.raises(EnvBroken, match=r"(?s)env 0 broke: the gripper fell off.*sample.restarts.*Traceback"):
        s.collect(policy())


class Feeling(LinearPolicy):
    """Remembers the rewards that it was told of; they say what it saw of its episode."""

    def act(self, obs, memory, explore, rng):
        return super().act(obs, memory, explore, rng)._replace(memory=memory, value=memory[:, 0].copy())

    def observe_reward(self, memory, reward):
        after = memory.copy()
        after[:, 0] += reward
        return after


def test_a_policy_that_wants_to_know_is_told_the_reward_of_each_step_of_its_own_episode():
    rollout = sampler(num_envs=2, steps=20).collect(Feeling(3, 1))
    for env in range(2):
        for begin in (0, 7, 14):  # episodes have seven steps
            raw = rollout.raw_reward[begin : begin + 7, env]
            gathered = np.concatenate([[0.0], np.cumsum(raw)[:-1]])
            np.testing.assert_allclose(rollout.value[begin : begin + len(raw), env], gathered, rtol=1e-5)


class Outwards:
    """Always forwards, into the limit; says its probabilities or not."""

    memory_size, version = 0, 0

    def __init__(self, says_log_prob):
        self.says_log_prob = says_log_prob

    def act(self, obs, memory, explore, rng):
        log_prob = np.zeros(len(obs), np.float32) if self.says_log_prob else None
        return Decision(np.tile(np.float32([1, 0, 0]), (len(obs), 1)), memory, log_prob)


@pytest.mark.parametrize("on_policy", [False, True])
def test_what_a_robot_really_did_is_stored_unless_the_policy_must_see_its_own_action(on_policy):
    env = EnvConfig(id="panda/reach")
    shape = RolloutShape(make(env).spec, steps=40, num_envs=1)
    stored = SerialSampler(lambda _: make(env), plans(1, 1, 0), shape).collect(Outwards(on_policy)).action[:, 0, 0]
    assert stored[0] == 1.0
    assert (stored[-5:] == (1.0 if on_policy else 0.0)).all()  # long at the limit: the target no longer moves


@pytest.mark.parametrize("cut", [[[]], ["1"], [0.5], [True]])
def test_lost_episodes_of_a_state_are_numbers_of_environments(cut):
    s = sampler()
    s.collect(policy())
    state = s.state()
    with pytest.raises(ValueError, match="numbers of their environments"):
        sampler().load({**state, "cut": cut})
    sampler().load({**state, "cut": [0]})
