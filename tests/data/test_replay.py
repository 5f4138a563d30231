import numpy as np
import pytest

from roboloop.core.state import equal
from roboloop.core.types import BatchSpec, EnvSpec, EpisodeEnd
from roboloop.data import journal as journal_files
from roboloop.data.journal import Journal
from roboloop.data.replay import Replay
from roboloop.sample.buffers import RolloutShape

SPEC = EnvSpec((1,), np.dtype("float32"), (-1.0,), (1.0,), 1000)


def make(num_envs=1, capacity=64, size=256, n_step=1, gamma=0.5, frame_stack=1):
    return Replay(capacity, SPEC, num_envs, BatchSpec(size, n_step, gamma, frame_stack), seed=0)


def feed(replay, episodes, start=0, num_envs=1, terminated=True, close_last=True):
    """Feed episodes of given lengths; an observation tells its time: obs = episode * 100 + t + env * 10_000."""
    for i, length in enumerate(episodes):
        for t in range(length):
            is_last = t == length - 1 and (close_last or i < len(episodes) - 1)
            now = [[(start + i) * 100 + t + env * 10_000] for env in range(num_envs)]
            replay.add(one_step(np.array(now, np.float32), float(t), is_last, terminated))


def one_step(obs, reward, is_last, terminated, first_env=0, cut=()):
    """One step of some environments; what follows is obs + 1, or at an end a next episode that begins with obs - 7."""
    rollout = RolloutShape(SPEC, steps=1, num_envs=len(obs)).allocate()
    rollout.obs[0], rollout.obs[1] = obs, obs - 7 if is_last else obs + 1
    rollout.reward[:] = reward
    (rollout.terminated if terminated else rollout.truncated)[:] = is_last
    for column in range(len(obs) if is_last else 0):
        rollout.episodes.append(EpisodeEnd(first_env + column, 0, 1, 0.0, 0.0, t=0, last_obs=obs[column] + 1))
    return rollout._replace(first_env=first_env, cut=cut)


def test_the_successor_is_the_true_one_even_at_an_episode_end():
    replay = make()
    feed(replay, [5, 3, 7])
    batch = replay.sample()
    assert (batch.next_obs == batch.obs + 1).all()
    assert set(batch.obs[:, 0]) == {*range(5), *range(100, 103), *range(200, 207)}


def test_the_newest_step_can_be_sampled_while_its_episode_runs():
    replay = make()
    feed(replay, [4], close_last=False)
    batch = replay.sample()
    assert batch.obs.max() == 3
    assert batch.next_obs.max() == 4


@pytest.mark.parametrize("terminated", [True, False])
def test_truncation_bootstraps_and_termination_does_not(terminated):
    replay = make()
    feed(replay, [3], terminated=terminated)
    batch = replay.sample()
    last = batch.obs[:, 0] == 2
    assert (batch.discount[~last] == 0.5).all()
    assert (batch.discount[last] == (0.0 if terminated else 0.5)).all()


def test_n_step_windows_by_hand():
    replay = make(n_step=3)
    feed(replay, [4], terminated=False)
    batch = replay.sample()
    for obs, next_obs, reward, discount in {
        (float(o), float(n), float(r), float(d))
        for o, n, r, d in zip(batch.obs[:, 0], batch.next_obs[:, 0], batch.reward, batch.discount, strict=True)
    }:
        # rewards are 0, 1, 2, 3; gamma is 0.5; a window near the end is shorter
        expected = {
            0.0: (3.0, 0 + 0.5 * 1 + 0.25 * 2, 0.125),
            1.0: (4.0, 1 + 0.5 * 2 + 0.25 * 3, 0.125),
            2.0: (4.0, 2 + 0.5 * 3, 0.25),
            3.0: (4.0, 3.0, 0.5),
        }[obs]
        assert (next_obs, reward, discount) == expected


def test_n_step_stops_bootstrapping_where_the_world_ended():
    replay = make(n_step=3)
    feed(replay, [4], terminated=True)
    batch = replay.sample()
    assert (batch.discount[batch.obs[:, 0] > 0] == 0).all()
    assert (batch.discount[batch.obs[:, 0] == 0] == 0.125).all()


def test_stacks_repeat_the_first_observation_and_never_cross_an_edge():
    replay = make(frame_stack=3)
    feed(replay, [5, 4])
    batch = replay.sample()
    for stack, after in zip(batch.obs[:, :, 0], batch.next_obs[:, :, 0], strict=True):
        first = stack[-1] // 100 * 100
        assert stack.tolist() == [max(stack[-1] - 2, first), max(stack[-1] - 1, first), stack[-1]]
        assert after.tolist() == [max(stack[-1] - 1, first), stack[-1], stack[-1] + 1]


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_wrapped_ring_holds_only_what_was_not_overwritten(frame_stack):
    replay = make(capacity=20, frame_stack=frame_stack, n_step=2)
    feed(replay, [7] * 10)
    batch = replay.sample()
    newest = batch.obs.reshape(256, -1)[:, -1]
    assert newest.min() >= 700
    assert 906 in newest
    for stack in batch.obs.reshape(256, -1):
        assert (np.diff(stack) <= 1).all()
        assert (np.diff(stack) >= 0).all()


def test_every_environment_has_its_own_stream():
    replay = make(num_envs=3, capacity=90)
    feed(replay, [5, 4], num_envs=3)
    batch = replay.sample()
    assert (batch.next_obs == batch.obs + 1).all()
    assert {int(o) // 10_000 for o in batch.obs[:, 0]} == {0, 1, 2}


def test_rollouts_of_some_environments_go_to_their_own_streams():
    replay = make(num_envs=3, capacity=90)
    feed(replay, [5], num_envs=3, close_last=False)
    replay.add(one_step(np.array([[10_005.0]], np.float32), 5.0, is_last=True, terminated=True, first_env=1))
    batch = replay.sample()
    assert (batch.next_obs == batch.obs + 1).all()
    assert {int(o) for o in batch.obs[:, 0] if o % 10_000 == 5} == {10_005}


@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_episode_is_closed_where_it_was_last_seen(tmp_path, saved):
    replay = make(n_step=3)
    replay.attach(Journal(tmp_path, 1 << 20))
    feed(replay, [4], close_last=False)
    if saved:
        replay.commit()  # the last row is on disk before anybody knows that it will be the last
    replay.add(one_step(np.array([[100.0]], np.float32), 0.0, is_last=False, terminated=False, cut=(0,)))
    frontier, state = replay.commit(), replay.state()
    other = make(n_step=3)
    other.load(state, journal_files.read(tmp_path, frontier))
    for some in (replay, other):
        batch = some.sample()
        # observation 4 was seen but never acted on: windows end there and bootstrap from it
        assert batch.next_obs[batch.obs == 3].tolist() == [4.0] * int((batch.obs == 3).sum())
        assert (batch.discount[batch.obs[:, 0] == 3] == 0.5).all()
        assert 4 not in batch.obs
        assert (batch.next_obs[batch.obs == 100] == 101).all()
    assert equal(vars_of(replay), vars_of(other))


def test_sampling_is_uniform_over_steps():
    replay = make(size=20_000)
    feed(replay, [1, 9])
    counts = np.unique(replay.sample().obs, return_counts=True)[1]
    assert len(counts) == 10
    assert abs(counts / 2000 - 1).max() < 0.1


@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 64), (3, 90), (2, 24)])
def test_a_journal_gives_back_the_same_bytes(tmp_path, num_envs, capacity):
    replay = make(num_envs, capacity)
    replay.attach(Journal(tmp_path, 1 << 20))
    feed(replay, [5, 4], num_envs=num_envs)
    replay.commit()
    feed(replay, [6, 7, 3], start=2, num_envs=num_envs, close_last=False)
    frontier, state = replay.commit(), replay.state()
    other = make(num_envs, capacity)
    other.load(state, journal_files.read(tmp_path, frontier))
    assert equal(vars_of(replay), vars_of(other))
    assert equal(replay.sample()._asdict(), other.sample()._asdict())


def vars_of(replay):
    return {k: getattr(replay, k) for k in ("_obs", "_action", "_reward", "_flags", "_age", "_head", "_saved")}


def test_rows_reach_the_journal_before_the_ring_overwrites_them(tmp_path):
    replay = make(capacity=20)
    replay.attach(Journal(tmp_path, 1 << 20))
    feed(replay, [5] * 20)
    frontier = replay.commit()
    obs = np.concatenate([columns["obs"][:, 0] for columns, _ in journal_files.read(tmp_path, frontier)])
    assert obs.tolist() == [e * 100 + t for e in range(20) for t in range(6)]


def test_a_batch_of_several_tasks_has_as_many_rows_of_each_one_after_another():
    replay = Replay(300, SPEC, 6, BatchSpec(30, 1, 0.5, 1, num_tasks=3), seed=0)
    feed(replay, [5, 4, 6], num_envs=6)
    for _ in range(5):
        env = replay.sample().obs[:, 0].astype(int) // 10_000
        assert (env % 3).tolist() == [0] * 10 + [1] * 10 + [2] * 10
    seen = {int(e) for _ in range(20) for e in replay.sample().obs[:, 0] // 10_000}
    assert seen == set(range(6))


def test_a_task_that_has_more_rows_does_not_get_more_of_a_batch():
    replay = Replay(300, SPEC, 2, BatchSpec(20, 1, 0.5, 1, num_tasks=2), seed=0)
    feed(replay, [3], num_envs=2, close_last=False)
    for t in range(30):
        replay.add(one_step(np.array([[10_000 + 3 + t]], np.float32), 0.0, False, False, first_env=1))
    assert (replay.sample().obs[:, 0] >= 10_000).tolist() == [False] * 10 + [True] * 10
