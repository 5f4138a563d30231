"""Every suite passes the one contract."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.env import EpisodeEnv, Outcome, Task
from roboloop.envs.replay import ReplayWorld

METAWORLD = ["metaworld/reach-v3", "metaworld/pick-place-v3", "metaworld/lever-pull-v3", "metaworld/basketball-v3"]
GYM = ["gym/HalfCheetah-v5", "gym/Hopper-v5", "gym/Ant-v5", "Pendulum-v1"]
DMC = ["dmc/walker-walk", "dmc/cartpole-swingup", "dmc/reacher-easy"]


@pytest.mark.parametrize("env_id", METAWORLD + GYM + DMC)
def test_the_suite_passes_the_contract(env_id: str) -> None:
    cfg = EnvConfig(id=env_id, max_episode_steps=120)
    check_env(lambda: make(cfg), pictures=env_id != "Pendulum-v1")  # pygame is not a dependency


@pytest.mark.parametrize("env_id", ["metaworld/push-v3", "gym/Hopper-v5", "dmc/walker-walk"])
def test_action_repeat_keeps_the_contract(env_id: str) -> None:
    check_env(lambda: make(EnvConfig(id=env_id, action_repeat=3, max_episode_steps=40)), steps=10, pictures=False)


class CountingWorld(ReplayWorld):
    """Counts its steps, rewards the count, and ends the world at a given one."""

    def __init__(self, ends_at: int) -> None:
        super().__init__(1)
        self.ends_at, self.count = ends_at, 0

    def start(self, seed: int) -> Array:
        self.count = 0
        return np.array([seed, 0.0])

    def advance(self, action: Array) -> Outcome:
        self.count += 1
        return Outcome(np.array([0.0, self.count]), float(self.count), self.count == self.ends_at, False, None)

    def render(self) -> Array:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        pass


def counting(horizon: int, repeat: int, ends_at: int = 10**9) -> EpisodeEnv:
    return EpisodeEnv(CountingWorld(ends_at), Task((2,), "float32", -np.ones(1), np.ones(1), horizon, repeat))


def test_action_repeat_sums_rewards_and_the_horizon_counts_simulator_steps() -> None:
    env = counting(horizon=5, repeat=2)
    env.reset(0)
    assert env.spec.max_episode_steps == 3
    assert [env.step(np.zeros(1))[1:4] for _ in range(3)] == [
        (3.0, False, False),
        (7.0, False, False),
        (5.0, False, True),
    ]


def test_action_repeat_stops_where_the_world_ends() -> None:
    env = counting(horizon=100, repeat=4, ends_at=6)
    env.reset(0)
    assert env.step(np.zeros(1))[1:4] == (10.0, False, False)
    assert env.step(np.zeros(1))[1:4] == (11.0, True, False)


def test_a_world_that_ends_at_the_horizon_is_both_terminated_and_truncated() -> None:
    env = counting(horizon=3, repeat=1, ends_at=3)
    env.reset(0)
    assert [env.step(np.zeros(1))[2:4] for _ in range(3)][-1] == (True, True)


@pytest.mark.parametrize("action", [np.array([np.nan]), np.zeros(2), np.float32(0)])
def test_an_action_of_another_shape_or_not_finite_is_refused(action: Array) -> None:
    env = counting(horizon=3, repeat=1)
    env.reset(0)
    with pytest.raises(ValueError, match="finite numbers"):
        env.step(action)


def test_an_environment_that_was_never_reset_can_be_saved_and_restored() -> None:
    for env_id in ("metaworld/reach-v3", "Pendulum-v1"):
        a, b = make(EnvConfig(id=env_id)), make(EnvConfig(id=env_id))
        b.set_state(a.get_state())
        assert a.reset(1).tobytes() == b.reset(1).tobytes()
