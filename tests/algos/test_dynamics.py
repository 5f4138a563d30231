"""Adversarial dynamics: fair where nothing differs, blind to units, and it finds the motor that the target has."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.gail import GAIL
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.simgan.dynamics import check_target, make_dynamics, robot_dims
from roboloop.algos.simgan.dynamics_config import DynamicsConfig, TargetConfig
from roboloop.algos.simgan.transition_windows import WindowShape
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import Array, Decision
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.envs.tiny.cart import MAX_FACTOR
from roboloop.run.record import record
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler
from tests.algos.test_gail import Learner

NUM_ENVS, STEPS = 8, 128
HYBRID = EnvConfig(id="tiny/hybrid-cart")
SPEC = make(HYBRID).spec


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a function that records a cart driven at random, once each."""
    root = tmp_path_factory.mktemp("carts")

    def data(cart: str) -> Path:
        if not (root / cart).exists():
            assert record([f"tiny/{cart}", "--random", "--episodes", "100", "--out", str(root / cart)]) == 0
        return root / cart

    return data


def config(directory: Path, **options) -> DynamicsConfig:
    base = DynamicsConfig(target=TargetConfig(str(directory)))
    ppo = replace(base.ppo, hidden=(32, 32), rollout_steps=STEPS, minibatches=4, epochs=6, lr=1e-3, gamma=0.9, shards=1,
                  processes=1)  # fmt: skip
    judge = replace(base.discriminator, hidden=(32, 32), lr=3e-3)
    cfg = replace(base, ppo=ppo, discriminator=judge, **{"discriminator_updates": 64, **options})
    cfg.check()
    return cfg


def learner(cfg: DynamicsConfig) -> GAIL:
    return make_dynamics(cfg, SPEC, Dataset.open(Path(cfg.target.directory)), NUM_ENVS, seed=0)


def sampler() -> SerialSampler:
    return SerialSampler(
        lambda _: make(HYBRID), plans(NUM_ENVS, 1, seed=0), RolloutShape(SPEC, STEPS, NUM_ENVS, 1, True)
    )


class Nominal:
    """Leaves the simulator as it is."""

    memory_size = version = 0

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        return Decision(np.zeros((len(obs), 1), np.float32), memory)


WINDOWS = {
    "one step": {},
    "lags": {"state_lags": (4, 0), "action_lags": (4, 2, 0)},
    "masked": {"state_lags": (4,), "action_lags": (4, 2, 0), "padding": "mask"},
    "ahead": {"ahead": 3, "after_end": (1.0, 0.0)},
}


@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
def test_equal_worlds_cannot_be_told_apart_and_nothing_is_paid(recorded, options) -> None:
    """Windows of rollouts and of the dataset must then be made alike, down to where episodes begin and end."""
    algo, envs = learner(config(recorded("cart"), discriminator_updates=32, **options)), sampler()
    algo._rl.close()
    algo._rl = Learner()
    found = [algo.update(envs.collect(Nominal())) for _ in range(24)][-12:]
    mean = {name: np.mean([metrics[name] for metrics in found]) for name in found[0]}
    assert mean["d_score"] == pytest.approx(0.5, abs=0.03)
    assert mean["d_score_held_out"] == pytest.approx(0.5, abs=0.03)
    assert mean["disc_accuracy"] == pytest.approx(0.5, abs=0.06)
    assert mean["disc_reward"] == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(("cart", "motor"), [("weak-cart", 0.5), ("cart", 1.0)])
def test_the_motor_of_the_target_is_found(recorded, cart: str, motor: float) -> None:
    algo, envs = learner(config(recorded(cart))), sampler()
    motors = []
    for _ in range(24):
        rollout = envs.collect(algo.policy)
        motors.append(np.exp(math.log(MAX_FACTOR) * rollout.action.clip(-1, 1)).mean())
        algo.update(rollout)
    algo.close()
    assert motors[0] > 1.2, "an untrained generator is nominal but for its noise"
    assert motor / 1.3 < np.mean(motors[-6:]) < motor * 1.3


def test_masked_steps_are_neither_learned_from_nor_paid(recorded) -> None:
    cfg = config(recorded("weak-cart"), state_lags=(6,), padding="mask", discriminator_updates=2)
    algo, envs = learner(cfg), sampler()
    algo._rl.close()
    algo._rl = rl = Learner()
    algo.update(envs.collect(Nominal()))
    assert (rl.rollout.reward[:6] == 0.0).all()
    assert (rl.rollout.reward[6] != 0.0).any()
    masked = rl.rollout.reward == 0.0
    ends = rl.rollout.terminated | rl.rollout.truncated
    for t, env in zip(*np.nonzero(ends[: STEPS - 6]), strict=True):
        assert masked[t + 1 : t + 7, env].all()
    assert algo._discriminator._policy.steps.tolist() == pytest.approx([0.99 * 128 + 128])
    assert 6 * NUM_ENVS < masked.sum() < STEPS * NUM_ENVS / 2


def test_a_rollout_without_a_whole_window_teaches_nothing(recorded) -> None:
    algo, envs = learner(config(recorded("weak-cart"), state_lags=(49,), padding="mask")), sampler()
    rollout = envs.collect(algo.policy)
    short = rollout._replace(truncated=np.ones_like(rollout.truncated), episodes=[])
    before = algo._discriminator.num_updates
    assert "disc_loss" not in algo.update(short)
    assert algo._discriminator.num_updates == before
    algo.close()


def windows_judge(shape: WindowShape, lives: EpisodeCounts) -> Discriminator:
    return Discriminator(DynamicsConfig().discriminator, shape.spec, lives, 0.9, seed=0)


def drawn(rng: np.random.Generator, *lead: int, rate: float = 0.0, mean: float = 0.0) -> Steps:
    ended = np.zeros(lead, bool)
    ended.reshape(-1)[: round(rate * ended.size)] = True
    return Steps(rng.normal(mean, 1.0, (*lead, 5)).astype(np.float32), np.zeros((*lead, 0), np.float32), ended)


@pytest.mark.parametrize(("expert_life", "policy_life"), [(20.0, 5.0), (5.0, 20.0), (10.0, 10.0)])
def test_the_bonus_is_the_logarithm_of_how_much_longer_the_target_lives(expert_life, policy_life) -> None:
    judge = windows_judge(WindowShape(2, 1), EpisodeCounts(np.array([1000.0]), np.array([1000.0 / expert_life])))
    rng = np.random.default_rng(0)
    for _ in range(20):
        judge.update(drawn(rng, 100, rate=1 / policy_life), drawn(rng, 1, 100), None)
    some = drawn(rng, 50)
    bonus = judge.rewards(*some)[0] - judge.logits(some)[0].numpy()
    assert bonus == pytest.approx(np.full(50, math.log(expert_life / policy_life)), abs=1e-5)


def test_lives_of_the_target_are_counted_by_the_end_of_the_world_not_by_the_clock(recorded) -> None:
    data = Dataset.open(recorded("weak-cart"))
    expert = ExpertConfig("x", held_out=0.0)
    lengths = data.table["length"]
    ended = np.array([data.episode(row).terminated[-1] for row in range(len(data))])
    assert 0 < ended.sum() < len(data)
    plain = ExpertBuffer([data], expert, 0, WindowShape(2, 1).read)
    assert plain.num_steps.tolist() == [lengths.sum()]
    assert plain.num_ends.tolist() == [ended.sum()]
    masked = ExpertBuffer([data], expert, 0, WindowShape(2, 1, (6,), (0,), "mask").read)
    assert masked.num_steps.tolist() == [np.maximum(lengths - 6, 0).sum()]
    assert masked.num_ends.tolist() == [(ended & (lengths > 6)).sum()]


def test_what_is_learned_does_not_depend_on_the_units_of_states() -> None:
    shape, lives = WindowShape(2, 1), EpisodeCounts(np.array([100.0]), np.array([10.0]))
    units = np.array([64.0, 0.25, 2.0, 1024.0, 0.5], np.float32)  # powers of two: the same digits
    found = []
    for unit in (np.ones(5, np.float32), units):
        judge, rng = windows_judge(shape, lives), np.random.default_rng(0)
        pairs = ((drawn(rng, 64), drawn(rng, 1, 64, mean=0.5)) for _ in range(30))
        scaled = [[steps._replace(obs=steps.obs * unit) for steps in pair] for pair in pairs]
        found.append([judge.update(policy, experts, None) for policy, experts in scaled])
    for one, other in zip(*found, strict=True):
        assert one["disc_penalty"] == pytest.approx(other["disc_penalty"], rel=1e-4)
        assert one["disc_loss"] == pytest.approx(other["disc_loss"], rel=1e-4)


def test_a_target_or_an_environment_of_another_robot_is_refused(recorded) -> None:
    with pytest.raises(ConfigError, match="dynamics needs an environment whose action is a simulator's parameters"):
        robot_dims(make(EnvConfig(id="tiny/cart")).spec)
    data = Dataset.open(recorded("cart"))
    with pytest.raises(ConfigError, match=r"has observations \(2,\), the robot's state has 3 numbers"):
        check_target(WindowShape(3, 1), data)
    with pytest.raises(ConfigError, match="has actions of 1 numbers, the robot 2"):
        check_target(WindowShape(2, 2), data)
    with pytest.raises(DataError, match=r"no episode of .* is long enough for windows of 60 steps back"):
        learner(config(recorded("cart"), state_lags=(60,), padding="mask"))


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (DynamicsConfig(), "'algo.target.directory' is needed"),
        (DynamicsConfig(target=TargetConfig("x", held_out=1.0)), "'held_out' is a share below 1"),
        (
            DynamicsConfig(target=TargetConfig("x"), state_lags=(0, 0)),
            r"'algo.state_lags' counts steps back, each once",
        ),
        (DynamicsConfig(target=TargetConfig("x"), action_lags=(-1,)), r"'algo.action_lags' counts steps back"),
        (DynamicsConfig(target=TargetConfig("x"), after_end=(1.0,)), "'algo.after_end' is for windows with algo.ahead"),
        (DynamicsConfig(target=TargetConfig("x"), discriminator_updates=0), "discriminator_updates must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(cfg: DynamicsConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cfg.check()
