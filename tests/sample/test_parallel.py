import os
import signal
import time

import numpy as np
import pytest

from roboloop.core.errors import WorkerLost
from roboloop.core.state import equal
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.crew import WorkerPool
from roboloop.sample.group import EnvBroken, plans
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from roboloop.sample.remote import RemoteEnv
from roboloop.sample.serial import SerialSampler
from tests.sample.kit import LinearPolicy
from tests.sample.test_serial import CONFIG, fields, permits  # noqa: F401 - a fixture

NUM_ENVS = 4


def misbehaving(how):
    return EnvConfig(id=f"gym/tests.sample.kit:Misbehave-{how}-v0")


@pytest.fixture
def build():
    """Make samplers that are closed when the test ends."""
    made = []

    def make_sampler(policy, env=CONFIG, free=False, steps=5, num_envs=NUM_ENVS, **cfg):
        cfg = SampleConfig(**{"groups": 2, "workers": 2, "free_running": free, **cfg})
        shape = RolloutShape(make(env).spec, steps, num_envs, 1, False, policy.memory_size)
        crew = WorkerPool(env, plans(num_envs, cfg.groups, 0), shape, cfg, cfg.queue if free else 1, [policy])
        made.append(FreeSampler(crew) if free else LockStepSampler(crew))
        return made[-1]

    yield make_sampler
    for sampler in made:
        sampler.close()


def serial(env=CONFIG, steps=5, groups=2, num_envs=NUM_ENVS):
    shape = RolloutShape(make(env).spec, steps, num_envs, 1, False, memory_size=2)
    return SerialSampler(lambda _: make(env), plans(num_envs, groups, 0), shape)


def policy():
    return LinearPolicy(3, 1)


@pytest.mark.parametrize(("groups", "workers"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_workers_in_lock_step_collect_the_same_bits_as_the_serial_sampler(build, groups, workers):
    a, b = policy(), policy()
    theirs, ours = build(b, groups=groups, workers=workers), serial(groups=groups)
    for _ in range(4):
        assert equal(fields(ours.collect(a)), fields(theirs.collect(b)))
        a.improve(), b.improve()


def test_groups_of_different_size_over_workers_with_different_numbers_of_groups_are_the_same_bits(build):
    a, b = policy(), policy()
    uneven = {"num_envs": 8, "groups": 5}
    theirs, ours = build(b, workers=3, **uneven), serial(**uneven)
    assert [plan.num_envs for plan in plans(8, 5, 0)] == [2, 2, 2, 1, 1]
    for _ in range(3):
        assert equal(fields(ours.collect(a)), fields(theirs.collect(b)))
        a.improve(), b.improve()
    moved = serial(**uneven)
    moved.load(theirs.state())
    assert equal(fields(moved.collect(a)), fields(theirs.collect(b)))


def test_groups_of_different_size_that_run_free_give_every_step_of_every_environment_once(build):
    p = policy()
    s = build(p, free=True, steps=7, num_envs=5, groups=2)
    seen = {env: [] for env in range(5)}
    while min(len(rows) for rows in seen.values()) < 14:
        rollout = s.collect(p)
        assert (rollout.first_env, rollout.reward.shape[1]) in ((0, 3), (3, 2))
        for column in range(rollout.reward.shape[1]):
            seen[rollout.first_env + column] += rollout.obs[:-1, column].tolist()
    expected = serial(steps=max(len(rows) for rows in seen.values()), num_envs=5).collect(policy())
    for env, rows in seen.items():
        assert rows[::7] == expected.obs[: len(rows) : 7, env].tolist()


def test_a_state_moves_between_serial_and_parallel_samplers(build):
    a, b = policy(), policy()
    ours, theirs = serial(), build(b)
    theirs.collect(b)
    ours.load(theirs.state())
    for _ in range(2):
        assert equal(fields(ours.collect(a)), fields(theirs.collect(b)))


def test_free_running_workers_give_every_step_of_every_environment_once(build):
    p = policy()
    s = build(p, free=True, steps=5)
    seen = {env: [] for env in range(NUM_ENVS)}
    while min(len(rows) for rows in seen.values()) < 20:
        rollout = s.collect(p)
        for column in range(rollout.reward.shape[1]):
            seen[rollout.first_env + column] += rollout.obs[:-1, column].tolist()
        p.improve()
    expected = serial(steps=max(len(rows) for rows in seen.values())).collect(policy())
    for env, rows in seen.items():  # actions differ with the weights, but episodes begin alike and are cut after 7
        assert rows[::7] == expected.obs[: len(rows) : 7, env].tolist()


def assert_fresh_as_the_queue_allows(given, rollout, version, queue=2):
    """Check that a rollout knows what was learned from its group's rollout so many before it, and note it.

    An order goes out when a slot is free again. How far a slow worker lags behind what others bring is not bounded.
    """
    of_group = given.setdefault(rollout.first_env, [])
    assert len(of_group) < queue or rollout.version[0] > of_group[-queue]
    of_group.append(version)


def test_free_running_policies_know_what_their_group_taught_as_far_as_the_queue_allows(build):
    p = policy()
    s = build(p, free=True, queue=2)
    given, lags = {}, []
    for _ in range(20):
        rollout = s.collect(p)
        assert_fresh_as_the_queue_allows(given, rollout, p.version)
        lags.append(p.version - rollout.version[0])
        p.improve()
    said = s.stats()
    assert said["sample/lag_max"] == max(lags)
    assert said["sample/lag_mean"] == pytest.approx(np.mean(lags))


def test_no_step_is_lost_or_given_twice_when_a_free_running_sampler_is_saved_and_restored(build):
    p = policy()
    s = build(p, free=True, steps=3)
    counts = np.zeros(NUM_ENVS, np.int64)

    def take(sampler, rollouts):
        for _ in range(rollouts):
            rollout = sampler.collect(p)
            for column in range(rollout.reward.shape[1]):
                env = rollout.first_env + column
                # pendulums are cut after 7 steps: where the count is in the episode must fit what is seen
                ends = [end.t for end in rollout.episodes if end.env == env]
                assert ends == [t for t in range(3) if (counts[env] + t) % 7 == 6]
                counts[env] += 3

    take(s, 5)
    for _ in range(3):
        state = s.state()
        restored = build(p, free=True, steps=3)
        restored.load(state)
        s.close()
        s = restored
        take(s, 5)
    assert counts.sum() == 4 * 5 * 3 * 2


@pytest.mark.parametrize("free", [False, True])
def test_a_killed_worker_is_named_restarted_and_its_running_episodes_are_cut(build, free):
    p = policy()
    s = build(p, free=free, steps=5)
    s.collect(p)
    os.kill(s._crew.pids[1], signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while not (rollout := s.collect(p)).cut:  # rollouts that were finished before its death come first
        assert time.monotonic() < deadline_s
    assert rollout.cut == (2, 3)
    assert (rollout.memory[2 - rollout.first_env :] == 0).all()
    assert not s.collect(p).cut
    assert len(s.faults()) == 1
    assert s.stats()["sample/restarts"] == 1


def test_a_loss_that_happens_while_a_state_is_taken_is_part_of_that_state(build):
    p = policy()
    s = build(p)
    s.collect(p)
    os.kill(s._crew.pids[1], signal.SIGKILL)
    state = s.state()
    assert state["cut"] == [2, 3]
    ours = serial()
    ours.load(state)
    assert ours.collect(p).cut == s.collect(p).cut == (2, 3)


def test_what_a_dead_worker_leaves_behind_is_said_with_its_signal(build):
    p = policy()
    s = build(p)
    s.collect(p)
    os.kill(s._crew.pids[0], signal.SIGKILL)
    s.collect(p)
    (said,) = s.faults()
    assert "worker 0 (pid " in said
    assert "was killed by SIGKILL" in said
    assert "restarted (1)" in said


def test_a_worker_that_dies_in_the_simulator_is_replaced_and_the_rollout_is_whole(build, permits):  # noqa: F811
    permits(1)
    p = policy()
    s = build(p, misbehaving("die"), steps=8)
    rollout = s.collect(p)
    assert rollout.obs[:-1, :, 0].tolist() == [[t] * NUM_ENVS for t in range(8)]
    assert s.stats()["sample/restarts"] == 1


def test_a_worker_that_hangs_is_found_by_its_heartbeat_and_its_stack_is_shown(build, permits):  # noqa: F811
    permits(1)
    p = policy()
    s = build(p, misbehaving("hang"), steps=8, hang_s=1.0)
    begin_s = time.monotonic()
    s.collect(p)
    assert time.monotonic() - begin_s < 30
    (said,) = s.faults()
    assert "hung in env.step of env" in said


def test_a_worker_that_hangs_for_ever_ends_the_run_and_names_the_line(build, permits):  # noqa: F811
    permits(1)
    p = policy()
    s = build(p, misbehaving("hang"), steps=8, hang_s=1.0, restarts=0)
    with pytest.raises(WorkerLost, match=r"(?s)hung in env.step of env.*kit.py.*in step"):
        s.collect(p)


def test_an_environment_that_raises_inside_a_worker_costs_its_episode_only(build, permits):  # noqa: F811
    permits(1)
    p = policy()
    s = build(p, misbehaving("raise"), steps=8)
    rollout = s.collect(p)
    assert [end.lost for end in rollout.episodes] == [True]
    assert s.stats() == {"sample/env_faults": 1.0}
    assert "the gripper fell off" in s.faults()[0]


def test_an_environment_that_keeps_raising_ends_the_run_with_its_traceback(build, permits):  # noqa: F811
    permits(99)
    p = policy()
    s = build(p, misbehaving("raise"), steps=8)
    with pytest.raises(EnvBroken, match=r"(?s)gripper fell off.*Traceback"):
        s.collect(p)


def test_a_swollen_worker_is_moved_to_a_fresh_process_without_losing_a_step(build):
    p, q = policy(), policy()
    s, ours = build(p, misbehaving("leak"), worker_memory_mb=250), serial(misbehaving("well"))
    for _ in range(8):
        assert equal(fields(ours.collect(q)), fields(s.collect(p)))
    assert s.stats()["sample/renewed"] >= 1
    assert "worker_memory_mb" in s.faults()[0]


def test_closing_leaves_no_process(build):
    p = policy()
    s = build(p)
    s.collect(p)
    pids = s._crew.pids
    s.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def central(env=CONFIG, groups=2, hang_s=30.0, restarts=3):
    spec = make(env).spec
    shape = RolloutShape(spec, 5, NUM_ENVS, 1, False, memory_size=2)
    return SerialSampler(lambda _: RemoteEnv(env, spec, hang_s), plans(NUM_ENVS, groups, 0), shape, restarts)


def test_environments_in_processes_of_their_own_give_the_same_bits_to_a_central_policy():
    ours, theirs, p = serial(), central(), policy()
    for _ in range(3):
        assert equal(fields(ours.collect(p)), fields(theirs.collect(p)))
    other = central()
    other.load(theirs.state())
    assert equal(fields(ours.collect(p)), fields(other.collect(p)))
    theirs.close(), other.close()


def kill(env):
    os.kill(env._child.pid, signal.SIGKILL)
    env._child._process.wait()


def test_a_process_that_dies_while_a_state_is_loaded_is_replaced_and_changes_no_bit():
    ours, theirs, p = serial(), central(), policy()
    ours.collect(p)
    state = ours.state()
    kill(theirs._groups[1]._envs[0])
    theirs.load(state)
    assert len(theirs.faults()) == 1
    assert equal(fields(ours.collect(p)), fields(theirs.collect(p)))
    theirs.close()


def test_a_process_that_is_dead_when_the_state_is_saved_loses_its_episode_and_nothing_else():
    ours, theirs, p = serial(), central(), policy()
    assert equal(fields(ours.collect(p)), fields(theirs.collect(p)))
    kill(theirs._groups[1]._envs[0])
    state = theirs.state()
    other = serial()
    other.load(state)
    first, second = theirs.collect(p), other.collect(p)
    assert first.cut == second.cut == (2,)
    assert equal(fields(first), fields(second))
    usual = ours.collect(p)
    np.testing.assert_array_equal(first.obs[:, [0, 1, 3]], usual.obs[:, [0, 1, 3]])
    assert not np.array_equal(first.obs[:, 2], usual.obs[:, 2])
    assert theirs.collect(p).cut == ()
    theirs.close()


@pytest.mark.parametrize(
    ("how", "message"), [("die", "was killed by SIGKILL"), ("hang", "hung for 1 s"), ("raise", "the gripper fell off")]
)
def test_a_lost_environment_process_costs_its_own_episode_only(how, message, permits):  # noqa: F811
    permits(1)
    s = central(misbehaving(how), hang_s=1.0)
    rollout = s.collect(policy())
    assert [end.lost for end in rollout.episodes] == [True]
    (said,) = s.faults()
    assert message in said
    s.close()
