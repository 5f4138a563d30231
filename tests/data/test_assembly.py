"""Whole episodes, each once, whatever the rollouts were cut into; what is not whole is not there."""

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec
from tests.data.recording import SPEC, Counting, assert_sound, names, recorder

RECORD = np.dtype([("image", np.uint8, (3, 6, 8)), ("vector", np.float32, (3,))])
DOOM = EnvSpec((), RECORD, (0.0, 0.0), (4.0, 2.0), 1000)


def record(tmp_path, envs, steps, rollouts, groups=1, **options):
    made = recorder(tmp_path, envs, steps, **options)
    size = envs.num_envs // groups
    for _ in range(rollouts):
        for group in range(groups):
            made.offer(envs.collect(steps, group * size, size), envs.steps)
            made.drain()
    return made.finish()


@pytest.mark.parametrize("steps", [8, 32, 128])
def test_an_episode_of_525_steps_is_the_same_for_every_length_of_rollout(tmp_path, steps):
    envs = Counting(2, lambda env, episode: 525)
    dataset = record(tmp_path, envs, steps, -(-1100 // steps))
    assert names(dataset) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert_sound(dataset)
    assert dataset.episode(0).version.tolist() == [1 + t // steps for t in range(525)]
    reference = Counting(1, lambda env, episode: 525).collect(525)
    stored = dataset.episode(0)
    for name in ("action", "reward", "raw_reward", "terminated", "truncated", "log_prob"):
        assert getattr(stored, name).tobytes() == getattr(reference, name)[:, 0].tobytes()
    assert stored.obs.tobytes() == np.append(reference.obs[:525, 0], reference.episodes[0].last_obs[None], 0).tobytes()


@pytest.mark.parametrize("spec", [SPEC, DOOM], ids=["numbers", "record"])
@pytest.mark.parametrize("steps", [1, 7, 16, 40])
def test_every_finished_episode_is_there_once_and_nothing_else(tmp_path, steps, spec):
    envs = Counting(4, lambda env, episode: 1 + (7 * env + 5 * episode) % 13, spec)
    dataset = record(tmp_path, envs, steps, -(-160 // steps))
    assert sorted(names(dataset)) == [(env, e) for env in range(4) for e in range(envs.episode[env])]
    assert_sound(dataset)
    assert dataset.num_steps == sum(1 + (7 * env + 5 * e) % 13 for env, e in names(dataset))


def test_groups_that_come_one_by_one_are_not_mixed_up(tmp_path):
    envs = Counting(6, lambda env, episode: 5 + env)
    dataset = record(tmp_path, envs, 4, 20, groups=3)
    assert sorted(names(dataset)) == [(env, e) for env in range(6) for e in range(envs.episode[env])]
    assert_sound(dataset)


def test_a_rollout_that_is_large_for_the_ring_goes_in_by_portions(tmp_path):
    spec = EnvSpec((3, 4000), np.dtype(np.float32), (-1.0, -1.0), (1.0, 1.0), 1000)

    class Wide(Counting):
        def obs(self, env, t=None):
            return np.repeat(np.array([[env], [self.episode[env]], [self.t[env]]], np.float32), 4000, 1)

    envs = Wide(8, lambda env, episode: 6, spec)
    dataset = record(tmp_path, envs, 8, 3, ring_mb=10)
    assert sorted(names(dataset)) == [(env, e) for env in range(8) for e in range(4)]
    assert (dataset.episode(0).obs[:, 2, 0] == range(7)).all()
    assert recorder(tmp_path, envs, 8, begin_at=None, ring_mb=10)._columns_at_once < 8


def test_a_ring_that_cannot_hold_one_rollout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"record\.ring_mb 1 is too small"):
        recorder(tmp_path, Counting(1, lambda env, episode: 5), 40_000, ring_mb=1)


def test_of_stacked_frames_the_newest_is_stored_once(tmp_path):
    envs = Counting(2, lambda env, episode: 9, stack=3)
    dataset = record(tmp_path, envs, 4, 12)
    assert len(dataset) == 10
    assert_sound(dataset)


def test_what_was_running_at_a_resume_is_left_out(tmp_path):
    envs = Counting(3, lambda env, episode: 10 + env)
    envs.collect(8)
    dataset = record(tmp_path, envs, 8, 10, begin_at=envs.steps)
    assert sorted(names(dataset)) == [(env, e) for env in range(3) for e in range(1, envs.episode[env])]
    assert_sound(dataset)


def test_lost_and_cut_episodes_are_left_out_and_what_follows_them_is_not(tmp_path):
    envs = Counting(3, lambda env, episode: 10)
    made = recorder(tmp_path, envs, 8)
    for number in range(10):
        lost = {2: {(0, 3)}, 5: {(1, 7)}}.get(number, set())
        made.offer(envs.collect(8, lost=lost, cut=(2,) if number == 4 else ()), envs.steps)
        made.drain()
    dataset = made.finish()
    assert_sound(dataset)
    missing = {(env, e) for env in range(3) for e in range(envs.episode[env])} - set(names(dataset))
    assert missing == {(0, 1), (1, 4), (2, 3)}
    assert (dataset.table["length"] == 10).all()


def test_a_writer_that_is_too_slow_costs_whole_episodes_and_never_a_piece(tmp_path):
    rng = np.random.default_rng(1)
    envs = Counting(8, lambda env, episode: 5 + (3 * env + 11 * episode) % 60)
    made = recorder(tmp_path, envs, 16, begin_at=None)
    made._ring = type(made._ring)(40_000, envs.spec)  # a few rollouts
    made._columns_at_once = 3
    made.begin(tmp_path / "dataset", 0)
    for _ in range(400):
        made.offer(envs.collect(16), envs.steps)
        if rng.random() < 0.15:
            made.drain()
    dataset = made.finish()
    assert_sound(dataset)
    finished, dropped = sum(envs.episode), made.timing()
    lost = dropped["record/dropped_backpressure"] + dropped["record/dropped_throttled"]
    assert dropped["record/dropped_backpressure"] > 5  # both ways of dropping are in play
    assert dropped["record/dropped_throttled"] > 20
    assert len(dataset) > 50
    # a running episode at the end is neither stored nor finished, and may or may not have been dropped
    assert finished <= len(dataset) + lost <= finished + envs.num_envs
    assert made.stats()["record/chosen_episodes"] == finished


def test_policy_versions_never_go_back_within_a_stream(tmp_path):
    envs = Counting(3, lambda env, episode: 20 + env)
    dataset = record(tmp_path, envs, 6, 60)
    for env in range(3):
        mine = dataset.table["env"] == env
        flat = np.concatenate([dataset.episode(row).version for row in np.flatnonzero(mine)])
        assert (np.diff(flat) >= 0).all()
        assert (dataset.table["version_last"][mine] >= dataset.table["version_first"][mine]).all()
        assert (np.diff(dataset.table["step"][mine]) > 0).all()
