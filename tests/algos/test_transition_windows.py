"""Windows over transitions: by hand, never across episodes, and the same from rollouts as from whole episodes."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.algos.simgan.transition_windows import Identified, RobotColumns, TransitionInput, WindowShape
from roboloop.core.errors import ConfigError
from roboloop.core.state import join, split
from roboloop.core.types import Array, EnvSpec, EpisodeEnd, Rollout

PLAIN = WindowShape(2, 1)
NOTES = WindowShape(1, 1, state_lags=(2,), action_lags=(2, 0))


def numbered(length: int, first: float = 0.0) -> tuple[Array, Array]:
    """Return states 0, 1, 2, ... and actions 100, 101, ... of one episode."""
    state = first + np.arange(length + 1, dtype=np.float32)[:, None]
    return state, 100 + state[:-1]


def test_a_window_is_the_lagged_states_and_actions_and_the_state_that_follows() -> None:
    windows = NOTES.of_episode(*numbered(4), terminated=True)
    # s[t - 2], a[t - 2], a[t], s[t + 1]; before the first step stands the first step
    assert windows.rows[:, 0].tolist() == [[0, 100, 100, 1], [0, 100, 101, 2], [0, 100, 102, 3], [1, 101, 103, 4]]
    assert windows.is_valid.all()
    assert NOTES.width == 4
    assert NOTES.max_lag == 2


def test_masked_windows_are_those_that_reach_before_the_episode() -> None:
    masked = WindowShape(1, 1, (2,), (2, 0), padding="mask").of_episode(*numbered(4), terminated=True)
    assert masked.is_valid[:, 0].tolist() == [False, False, True, True]
    assert masked.rows[2:].tolist() == NOTES.of_episode(*numbered(4), terminated=True).rows[2:].tolist()


def test_a_window_that_looks_ahead_sees_the_time_after_the_end_and_not_beyond_the_clock() -> None:
    shape = WindowShape(1, 1, ahead=2, after_end=(-7.0,))
    ended = shape.of_episode(*numbered(3), terminated=True)
    # s, a, s', then a[t + 1], s[t + 2], a[t + 2], s[t + 3]
    assert ended.rows[:, 0].tolist() == [
        [0, 100, 1, 101, 2, 102, 3], [1, 101, 2, 102, 3, 0, -7], [2, 102, 3, 0, -7, 0, -7],
    ]  # fmt: skip
    assert ended.is_valid.all()
    cut = shape.of_episode(*numbered(3), terminated=False)
    assert cut.is_valid[:, 0].tolist() == [True, False, False]
    assert cut.rows[0].tolist() == ended.rows[0].tolist()


class Episodes:
    """Endless episodes of B environments in rollouts: everything is numbered, so that what leaks can be told."""

    def __init__(self, num_envs: int, lengths: tuple[int, ...], steps: int) -> None:
        self.num_envs, self.lengths, self.steps = num_envs, lengths, steps
        self.whole: list[list[tuple[Array, Array, bool]]] = [[] for _ in range(num_envs)]
        self._at = [0] * num_envs
        for env in range(num_envs):
            self._begin(env)

    def _begin(self, env: int) -> None:
        number = len(self.whole[env])
        length = self.lengths[(env + number) % len(self.lengths)]
        state, action = numbered(length, first=1000.0 * (10 * env + number))
        self.whole[env].append((state, action, number % 2 == 0))
        self._at[env] = 0

    def collect(self, cut: int | None = None) -> Rollout:
        """Return the next rollout; an environment that is cut has lost its running episode."""
        shape = (self.steps, self.num_envs)
        obs = np.zeros((self.steps + 1, self.num_envs, 3), np.float32)  # noise for G, state, action
        flags, ends = np.zeros((2, *shape), bool), []
        if cut is not None:
            self._begin(cut)
        for t in range(self.steps):
            for env in range(self.num_envs):
                state, action, terminated = self.whole[env][-1]
                i = self._at[env]
                obs[t, env] = -1, state[i, 0], action[i, 0]
                self._at[env] += 1
                if self._at[env] == len(action):
                    last = np.array([-1, state[-1, 0], 0], np.float32)
                    ends.append(EpisodeEnd(env + 5, 0, len(action), 0.0, 0.0, t, last))
                    flags[0 if terminated else 1, t, env] = True
                    self._begin(env)
        for env in range(self.num_envs):
            state, action, _ = self.whole[env][-1]
            obs[-1, env] = -1, state[self._at[env], 0], action[self._at[env], 0]
        zero = np.zeros(shape, np.float32)
        version, value = np.zeros(self.num_envs, np.int64), np.zeros((self.steps + 1, self.num_envs), np.float32)
        return Rollout(obs, zero[..., None], zero, zero, *flags, zero, value, zero[:1].T, version, ends,
                       () if cut is None else (cut + 5,), first_env=5)  # fmt: skip


SHAPES = {
    "plain": WindowShape(1, 1),
    "notes": NOTES,
    "masked": WindowShape(1, 1, (3, 1), (0, 4), padding="mask"),
    "long": WindowShape(1, 1, (0, 9), (0,)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("steps", [1, 4, 16])
def test_windows_of_rollouts_are_those_of_the_whole_episodes(shape: WindowShape, steps: int) -> None:
    """Also where episodes go on from one rollout to the next, and where rollouts are shorter than the lags."""
    world = Episodes(3, (1, 5, 12, 2), steps)
    features = TransitionInput(shape, Identified(1, 1), 3)
    found: list[list[tuple[list[float], bool, bool]]] = [[], [], []]
    for _ in range(64 // steps):
        seen = features.look(world.collect())
        for row, is_valid, ended, env in zip(seen.steps.obs, seen.is_valid, seen.steps.ended,
                                             np.arange(len(seen.is_valid)) % 3, strict=True):  # fmt: skip
            found[env].append((row.tolist(), bool(is_valid), bool(ended)))
    for env, episodes in enumerate(world.whole):
        wanted = []
        for state, action, terminated in episodes[:-1]:
            windows = shape.of_episode(state, action, terminated)
            ended = [False] * (len(action) - 1) + [terminated]
            wanted += list(zip(windows.rows[:, 0].tolist(), windows.is_valid[:, 0].tolist(), ended, strict=True))
        assert len(wanted) > 30
        assert found[env][: len(wanted)] == wanted


def test_the_successor_of_the_last_step_is_the_state_before_the_reset() -> None:
    world = Episodes(1, (3,), 4)
    seen = TransitionInput(WindowShape(1, 1), Identified(1, 1), 1).look(world.collect())
    assert seen.steps.obs[:, 2].tolist() == [1, 2, 3, 1001]
    assert seen.steps.obs[:, 0].tolist() == [0, 1, 2, 1000]


def test_what_a_rollout_hides_of_a_window_ahead_is_left_out() -> None:
    world = Episodes(1, (6, 3), 12)  # 6 steps that end the world, 3 that the clock cuts, 3 of 6 that go on
    shape = WindowShape(1, 1, ahead=2)
    seen = TransitionInput(shape, Identified(1, 1), 1).look(world.collect())
    assert seen.is_valid.tolist() == [True] * 7 + [False] * 2 + [True] + [False] * 2
    first = shape.of_episode(*world.whole[0][0])
    assert seen.steps.obs[:6].tolist() == first.rows[:, 0].tolist()


def test_an_episode_that_was_lost_between_two_rollouts_is_not_looked_back_on() -> None:
    world = Episodes(2, (50,), 4)
    features = TransitionInput(NOTES, Identified(1, 1), 2)
    features.look(world.collect())
    seen = features.look(world.collect(cut=1))
    rows = seen.steps.obs.reshape(4, 2, -1)
    assert rows[0, 0].tolist() == [2, 102, 104, 5]
    assert rows[0, 1].tolist() == [11000, 11100, 11100, 11001]


def test_a_resumed_input_looks_back_on_the_same_rows() -> None:
    world = Episodes(2, (7, 3), 4)
    whole, resumed = (TransitionInput(SHAPES["masked"], Identified(1, 1), 2) for _ in range(2))
    whole.look(world.collect())
    tensors, rest = split(whole.state())
    resumed.load(join(tensors, rest))
    rollout = world.collect()
    a, b = whole.look(rollout), resumed.look(rollout)
    assert a.steps.obs.tolist() == b.steps.obs.tolist()
    assert a.is_valid.tolist() == b.is_valid.tolist()


def test_what_is_seen_is_a_copy() -> None:
    rollout = Episodes(1, (3,), 4).collect()
    features = TransitionInput(NOTES, Identified(1, 1), 1)
    seen = features.look(rollout)
    rollout.obs[:] = np.nan
    rollout.terminated[:] = True
    assert np.isfinite(seen.steps.obs).all()
    assert not seen.steps.ended.all()
    assert np.isfinite(features.state()["state"]).all()


def test_a_robots_own_environment_shows_the_newest_state_first_and_takes_actions_within_bounds() -> None:
    source = RobotColumns(2, EnvSpec((6,), np.dtype(np.float32), (-1.0,), (1.0,), 10))
    obs, action = np.arange(6.0)[None], np.array([[3.0]], np.float32)
    assert source.states(obs).tolist() == [[0, 1]]
    assert source.actions(obs, action).tolist() == [[1.0]]


def test_a_placeholder_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo.after_end has 1 numbers, a state 2"):
        WindowShape(2, 1, ahead=1, after_end=(1.0,))
