"""Every suite passes the one contract."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.replay import ReplayWorld
from roboloop.envs.tiny import suite as tiny_suite

METAWORLD = ["metaworld/reach-v3", "metaworld/pick-place-v3", "metaworld/lever-pull-v3", "metaworld/basketball-v3"]
GYM = ["gym/HalfCheetah-v5", "gym/Hopper-v5", "gym/Ant-v5", "Pendulum-v1"]
CHOICES = ["gym/CartPole-v1", "Acrobot-v1", "gym/MountainCar-v0", "gym/Taxi-v4"]
TINY = [f"tiny/{task}" for task in tiny_suite.TASKS]
HOPPER = ["hopper/bullet", "hopper/dart", "hopper/mujoco"]
DMC = ["dmc/walker-walk", "dmc/cartpole-swingup", "dmc/reacher-easy"]


NEEDS_PYGAME = ["Pendulum-v1", *CHOICES]


@pytest.mark.parametrize("env_id", METAWORLD + GYM + CHOICES + DMC + TINY + HOPPER)
def test_the_suite_passes_the_contract(env_id: str) -> None:
    cfg = EnvConfig(id=env_id, max_episode_steps=120)
    check_env(lambda: make(cfg), pictures=env_id not in NEEDS_PYGAME)  # pygame is not a dependency


@pytest.mark.parametrize("env_id", ["gym/LunarLander-v3", "gym/LunarLanderContinuous-v3", "gym/BipedalWalker-v3"])
def test_box2d_passes_the_contract_although_its_solver_remembers(env_id: str) -> None:
    pytest.importorskip("Box2D")
    check_env(lambda: make(EnvConfig(id=env_id, max_episode_steps=120)), pictures=False)


@pytest.mark.parametrize("env_id", ["metaworld/push-v3", "gym/Hopper-v5", "dmc/walker-walk"])
def test_action_repeat_keeps_the_contract(env_id: str) -> None:
    check_env(lambda: make(EnvConfig(id=env_id, action_repeat=3, max_episode_steps=40)), steps=10, pictures=False)


class CountingWorld(ReplayWorld):
    """Counts its steps, rewards the count, and ends the world at a given one."""

    def __init__(self, ends_at: int, action_dim: int = 1) -> None:
        super().__init__(action_dim)
        self.ends_at, self.count, self.seen = ends_at, 0, np.zeros(action_dim)

    def start(self, seed: int) -> Array:
        self.count = 0
        return np.array([seed, 0.0])

    def advance(self, action: Array, repeat: int) -> Outcome:
        return repeated(self.tick, action, repeat)

    def tick(self, action: Array) -> Outcome:
        self.count, self.seen = self.count + 1, action.copy()
        action[:] = -7  # as some simulators do
        obs, ended = np.array([0.0, self.count]), self.count == self.ends_at
        return Outcome(obs, float(self.count), ended, False, None, raw_reward=10.0 * self.count)

    def render(self) -> Array:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        pass


def counting(horizon: int, repeat: int, ends_at: int = 10**9) -> EpisodeEnv:
    return EpisodeEnv(CountingWorld(ends_at), Task((2,), FLOAT, -np.ones(1), np.ones(1), horizon, repeat))


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


def test_the_raw_reward_is_summed_like_the_reward_and_named_only_where_it_differs() -> None:
    env = counting(horizon=100, repeat=3)
    env.reset(0)
    assert env.step(np.zeros(1))[4] == {"raw_reward": 60.0}
    plain = make(EnvConfig(id="Pendulum-v1"))
    plain.reset(0)
    assert "raw_reward" not in plain.step(np.zeros(1))[4]


@pytest.mark.parametrize(
    ("sent", "taken"), [((0.2, 1.0), (0.2, 1)), ((-9, 1.6), (-1, 2)), ((9, 2.4), (1, 2)), ((0, -3), (0, 0))]
)
def test_choices_become_valid_whole_numbers_and_continuous_columns_are_clipped(
    sent: tuple[float, float], taken: tuple[float, float]
) -> None:
    world = CountingWorld(10**9, action_dim=2)
    task = Task((2,), FLOAT, np.array([-1, 0]), np.array([1, 2]), 10, action_choices=(0, 3))
    env = EpisodeEnv(world, task)
    assert env.spec.action_choices == (0, 3)
    assert not env.spec.is_continuous
    env.reset(0)
    env.step(np.array(sent))
    assert world.seen.tolist() == pytest.approx(taken)


def test_replay_keeps_the_actions_that_were_sent_and_how_long_they_were_held() -> None:
    env = counting(horizon=7, repeat=3)
    env.reset(4)
    for _ in range(3):
        env.step(np.ones(1))
    state = env.get_state()["world"]
    assert state["actions"].tolist() == [[1.0]] * 3
    assert state["repeats"].tolist() == [3, 3, 1]


def test_states_from_before_actions_were_held_are_still_restored() -> None:
    env = counting(horizon=100, repeat=2)
    old = {"seed": 1, "actions": np.ones((4, 1), np.float32)}  # one action per simulator step
    env.set_state({"clock": 4, "running": True, "world": old})
    assert env.step(np.zeros(1))[0].tolist() == [0.0, 6.0]


def test_an_environment_that_was_never_reset_can_be_saved_and_restored() -> None:
    for env_id in ("metaworld/reach-v3", "Pendulum-v1"):
        a, b = make(EnvConfig(id=env_id)), make(EnvConfig(id=env_id))
        b.set_state(a.get_state())
        assert a.reset(1).tobytes() == b.reset(1).tobytes()
