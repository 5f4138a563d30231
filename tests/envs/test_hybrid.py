"""Hybrid simulators: parameters at every step, a robot that moves by itself, generators that were frozen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.frozen import FrozenPolicy, Layers
from roboloop.envs.legged.config import HybridConfig, LeggedConfig
from roboloop.envs.legged.hopper import HopperTask
from roboloop.envs.legged.make import make_world
from roboloop.envs.legged.suite import HybridEnvConfig

pytest.importorskip("pybullet")
STATE, JOINTS, PARAMETERS = 11, 3, 7


def frozen(path: Path, obs_dim: int, action_dim: int, std: float = 0.3, scale: float = 0.1) -> str:
    rng = np.random.default_rng(3)

    def numbers(*shape: int) -> Array:
        return scale * rng.standard_normal(shape, dtype=np.float32)

    one = np.ones(action_dim, np.float32)
    log_std = np.full(action_dim, np.log(std), np.float32) if std else np.full(action_dim, -np.inf, np.float32)
    layers = Layers(
        (numbers(obs_dim, 8), numbers(8, action_dim)), (numbers(8), numbers(action_dim)), "tanh", -one, one, log_std,
        np.zeros((2, 0), np.float32),
    )  # fmt: skip
    path.write_bytes(FrozenPolicy(layers).to_bytes())
    return str(path)


@pytest.fixture
def hybrid(tmp_path: Path) -> EnvConfig:
    behaviour = frozen(tmp_path / "b.safetensors", STATE, JOINTS)
    return HybridEnvConfig(id="hybrid/hopper-bullet", hybrid=HybridConfig(behaviour=behaviour))


@pytest.fixture
def tuned(tmp_path: Path) -> EnvConfig:
    files = tuple(frozen(tmp_path / f"g{i}.safetensors", STATE + JOINTS, PARAMETERS, 0.2 + i) for i in range(2))
    return HybridEnvConfig(id="tuned/hopper-bullet", hybrid=HybridConfig(generators=files))


def test_both_pass_the_contract(hybrid: EnvConfig, tuned: EnvConfig) -> None:
    for cfg in (hybrid, tuned):
        check_env(lambda cfg=cfg: make(cfg), steps=25)


def test_parameters_of_zero_are_the_source_bit_for_bit(hybrid: EnvConfig) -> None:
    """Acceptance (b): what the robot did in the hybrid simulator, done again in the plain one, leads to the same."""
    env, source = make(hybrid), make(EnvConfig(id="hopper/bullet"))
    for seed in range(3):
        seen, plain = env.reset(seed), source.reset(seed)
        for _ in range(60):
            assert seen[:STATE].tobytes() == plain.tobytes()
            action = seen[STATE:]
            seen, _, ended, _, info = env.step(np.zeros(PARAMETERS, np.float32))
            plain, reward, plain_ended, _, _ = source.step(action)
            assert (info["raw_reward"], ended) == (reward, plain_ended)
            if ended:
                break


def test_a_generator_that_always_says_zero_is_the_source_bit_for_bit(tmp_path: Path) -> None:
    file = frozen(tmp_path / "zero.safetensors", STATE + JOINTS, PARAMETERS, std=0.0, scale=0.0)
    tuned = make(HybridEnvConfig(id="tuned/hopper-bullet", hybrid=HybridConfig(generators=(file,))))
    source, rng = make(EnvConfig(id="hopper/bullet")), np.random.default_rng(0)
    assert tuned.reset(5).tobytes() == source.reset(5).tobytes()
    for _ in range(40):
        action = rng.uniform(-0.5, 0.5, JOINTS).astype(np.float32)
        (a, reward, ended, *_), (b, plain_reward, *_) = tuned.step(action), source.step(action)
        assert (a.tobytes(), reward) == (b.tobytes(), plain_reward)
        if ended:
            break


def test_parameters_change_what_the_robot_does(hybrid: EnvConfig) -> None:
    env = make(hybrid)
    ends = []
    for value in (0.0, -1.0):
        env.reset(1)
        for _ in range(10):
            out = env.step(np.full(PARAMETERS, value, np.float32))
        ends.append(out[0][:STATE])
    assert np.abs(ends[0] - ends[1]).max() > 0.01


def test_nothing_is_paid_and_the_robots_own_return_is_told(hybrid: EnvConfig) -> None:
    env = make(hybrid)
    env.reset(0)
    _, reward, _, _, info = env.step(np.zeros(PARAMETERS, np.float32))
    assert reward == 0.0
    assert info["raw_reward"] != 0.0


def test_the_observation_ends_with_what_the_robot_is_about_to_do(hybrid: EnvConfig) -> None:
    env = make(hybrid)
    protocol = env.spec.protocol
    assert (protocol["state_dim"], protocol["robot_action_dim"]) == (STATE, JOINTS)
    seen = env.reset(0)
    world = make_world(HopperTask(), "bullet", LeggedConfig())
    state = world.start(0)
    assert seen[:STATE].tobytes() == state.astype(np.float32).tobytes()
    assert np.abs(seen[STATE:]).max() <= 1.0


def test_each_step_draws_one_of_the_generators(tuned: EnvConfig, tmp_path: Path) -> None:
    one = HybridEnvConfig(id=tuned.id, hybrid=HybridConfig(generators=tuned.hybrid.generators[:1]))
    ends = []
    for cfg in (tuned, one):
        env = make(cfg)
        env.reset(0)
        for _ in range(10):
            out = env.step(np.zeros(JOINTS, np.float32))
        ends.append(out[0].tobytes())
    assert ends[0] != ends[1]


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        (EnvConfig(id="hybrid/hopper-bullet"), "env.hybrid.behaviour must name a frozen policy"),
        (EnvConfig(id="tuned/hopper-bullet"), "env.hybrid.generators must name a frozen policy"),
        (EnvConfig(id="hybrid/hoper-bullet"), "unknown robot 'hoper'; did you mean 'hopper'"),
        (EnvConfig(id="hybrid/hopper"), "names no engine"),
    ],
)
def test_what_is_missing_is_named(cfg: EnvConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(cfg)


def test_a_policy_of_another_robot_is_refused(tmp_path: Path) -> None:
    other = frozen(tmp_path / "other.safetensors", 4, 2)
    with pytest.raises(ConfigError, match="sees 4 numbers and decides 2; here 11 are seen and 3 decided"):
        make(HybridEnvConfig(id="hybrid/hopper-bullet", hybrid=HybridConfig(behaviour=other)))
