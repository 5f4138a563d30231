"""Generative adversarial imitation: who is paid what and when, and that it learns what the env never says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from roboloop.algos.gail.config import GAILConfig
from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.gail.gail import GAIL, make_gail, taken_steps
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.learner.returns import ends_of, gae
from roboloop.algos.ppo.config import PPOConfig
from roboloop.core.errors import ConfigError
from roboloop.core.types import EpisodeEnd, Rollout
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBatch, ExpertBuffer
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.run.record import record
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler
from tests.algos.test_discriminator import GAMMA, SPEC

REACH = EnvConfig(id="play/reach", max_episode_steps=40, eval_max_episode_steps=40)
NUM_ENVS = 8
FAST = PPOConfig(
    hidden=(64, 64), rollout_steps=64, processes=1, shards=1, epochs=6, lr=1e-3, gamma=0.95, initial_std=0.6,
    normalize_obs=True, normalize_returns=True,
)  # fmt: skip


class Learner:
    """Stands for PPO: keeps what it is given to learn from."""

    num_updates = 0
    progress = 0.0

    def update(self, rollout: Rollout) -> dict[str, float]:
        self.rollout = rollout
        return {}


class Experts:
    """Stands for a buffer: draws something, and keeps count."""

    def __init__(self) -> None:
        self._rng, self.held_out_calls = np.random.default_rng(1), 0

    def sample(self, size: int) -> ExpertBatch:
        obs = self._rng.normal(1.0, 1.0, (2, 1, size, 3)).astype(np.float32)
        action = self._rng.uniform(-1, 1, (1, size, 2)).astype(np.float32)
        return ExpertBatch(obs[0], action, obs[1], self._rng.random((1, size)) < 0.1)

    def held_out(self, size: int) -> ExpertBatch:
        self.held_out_calls += 1
        return self.sample(size)


class Watched(Discriminator):
    """Keeps the policy's steps that it learned from."""

    def update(self, policy, experts, held_out):
        self.__dict__.setdefault("seen", []).append(policy)
        assert experts.obs.shape[:2] == (1, len(policy.obs)), "equally many of both"
        return super().update(policy, experts, held_out)


def rollout_of(rng: np.random.Generator, first_obs: float = 0.0) -> Rollout:
    """Return four steps of one environment: the second is cut by the clock, with the third the world ends."""
    obs, action = rng.normal(size=(5, 1, 3)).astype(np.float32), rng.normal(size=(4, 1, 2)).astype(np.float32)
    obs[:4, 0, 0] = first_obs
    reward = np.full((4, 1), 1e9, np.float32)
    truncated, terminated = (np.arange(4)[:, None] == t for t in (1, 2))
    ends = [EpisodeEnd(0, 0, 2, 2e9, 0.0, 1, obs[1, 0], last_value=5.0), EpisodeEnd(0, 1, 1, 1e9, 0.0, 2, obs[2, 0])]
    value = np.arange(5, dtype=np.float32)[:, None]
    zero = np.zeros((4, 1), np.float32)
    return Rollout(
        obs, action, reward, reward, terminated, truncated, zero, value, zero[:1], np.zeros(1, np.int64), ends
    )


def small(**options) -> tuple[GAIL, Learner, Watched, Experts]:
    turns = {"discriminator_updates": 3, "discriminator_batch": 8, "replay_rollouts": 2, **options}
    cfg = GAILConfig(ppo=PPOConfig(gamma=GAMMA), expert=ExpertConfig("x"), **turns)
    cfg.check()
    rl, experts = Learner(), Experts()
    lives = EpisodeCounts(np.array([100.0]), np.array([10.0]))
    disc = Watched(DiscriminatorConfig(hidden=(16,), lr=1e-2), SPEC, lives, GAMMA, seed=0)
    return GAIL(cfg, rl, disc, experts, seed=0), rl, disc, experts


def test_the_clock_is_bootstrapped_through_and_the_end_of_the_world_is_paid_for_ever() -> None:
    algo, rl, disc, _ = small()
    rollout = rollout_of(np.random.default_rng(0))
    algo.update(rollout)
    obs, action = rollout.obs[:-1, 0], rollout.action[:, 0]
    plain = disc.rewards(obs, action, np.zeros(4, bool))[0]
    after = float(disc._after()[0].detach())
    wanted = plain + np.array([0, 0, 1, 0]) * after * GAMMA / (1 - GAMMA)  # paid by what has just been learned
    np.testing.assert_allclose(rl.rollout.reward[:, 0], wanted, rtol=1e-5)
    found = gae(rl.rollout.reward, rl.rollout.value, ends_of(rl.rollout), GAMMA, 0.0)
    next_value = np.array([1.0, 5.0, 0.0, 4.0])  # of the row after; of the last observation; none; of the row after
    np.testing.assert_allclose(found.value[:, 0], wanted + GAMMA * next_value, rtol=1e-5)
    assert (rl.rollout.raw_reward == 1e9).all()
    assert (rollout.reward == 1e9).all(), "what was collected stays as it was"


def test_it_learns_from_the_latest_rollouts_and_is_judged_by_steps_it_never_saw() -> None:
    algo, _, disc, experts = small(replay_rollouts=2, discriminator_updates=3)
    for number in range(3):
        metrics = algo.update(rollout_of(np.random.default_rng(number), first_obs=float(number)))
    marks = [set(steps.obs[:, 0].tolist()) for steps in disc.seen]
    assert marks[::3] == [{0.0}, {1.0}, {2.0}], "the first of each rollout are new ones"
    assert marks[1] | marks[2] == {0.0}
    assert marks[4] | marks[5] == {0.0, 1.0}
    assert marks[7] | marks[8] == {1.0, 2.0}, "two rollouts are remembered"
    assert experts.held_out_calls == 3
    assert {"disc_loss", "disc_penalty", "disc_accuracy", "disc_calibration_error", "disc_reward"} <= set(metrics)


def test_an_action_is_judged_as_the_environment_took_it() -> None:
    disc = small()[2]
    obs, ended = np.zeros((2, 3), np.float32), np.zeros(2, bool)
    beyond, bound = np.full((2, 2), 99.0, np.float32), np.tile(np.array([2.0, 1.0], np.float32), (2, 1))
    np.testing.assert_array_equal(disc.rewards(obs, beyond, ended), disc.rewards(obs, bound, ended))
    # choices have columns of their own, so that 0, 1 and 2 are not more or less of something
    cfg, lives = DiscriminatorConfig(hidden=(), ends="none"), EpisodeCounts(np.ones(1), np.zeros(1))
    mixed = Discriminator(cfg, dataclasses.replace(SPEC, action_choices=(0, 4)), lives, GAMMA, seed=0)
    action = np.array([[1.0, 2.0], [5.0, 0.0]], np.float32)
    seen = mixed._inputs(Steps(obs, action, ended))
    assert seen[:, 3:].tolist() == [[0, 0, 1, 0, 0.5], [1, 0, 0, 0, 1]]  # the choice among four, then half of two


def test_what_is_seen_of_a_rollout_is_a_copy_whose_ends_are_the_worlds() -> None:
    rollout = rollout_of(np.random.default_rng(0))
    steps = taken_steps(rollout)
    assert steps.obs.shape == (4, 3)
    assert steps.ended.tolist() == [False, False, True, False]
    rollout.obs[:] = 7.0
    assert not (steps.obs == 7.0).any()


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "reach"
    flags = ["--expert", "--episodes", "20", "--noise", "0.05", "--env.max-episode-steps", "40"]
    assert record(["play/reach", *flags, "--out", str(out)]) == 0
    return out


def learner(demos: Path) -> GAIL:
    expert = ExpertConfig(str(demos), end_share=0.0)
    disc = DiscriminatorConfig(hidden=(32, 32), lr=3e-3)
    cfg = GAILConfig(ppo=FAST, discriminator=disc, expert=expert, discriminator_updates=32)
    cfg.check()
    return make_gail(cfg, make(REACH).spec, ExpertBuffer([Dataset.open(demos)], expert, seed=0), NUM_ENVS, seed=0)


def sampler() -> SerialSampler:
    shape = RolloutShape(make(REACH).spec, FAST.rollout_steps, NUM_ENVS, 1, True)
    return SerialSampler(lambda _: make(REACH), plans(NUM_ENVS, 1, seed=0), shape)


def test_returns_are_scaled_by_what_the_discriminator_pays(demos: Path) -> None:
    algo, envs = learner(demos), sampler()
    rollout = envs.collect(algo.policy)
    algo.update(rollout._replace(reward=rollout.reward * 1e6))
    steps = taken_steps(rollout)
    paid = algo._discriminator.rewards(*steps)[0].reshape(rollout.reward.shape)
    returns = gae(paid, rollout.value, ends_of(rollout), FAST.gamma, FAST.gae_lambda).value
    assert algo.policy.learner.return_norm.tolist() == pytest.approx([returns.mean(), returns.std()], rel=1e-2)
    algo.close()


def test_it_learns_to_reach_from_an_expert_alone(demos: Path) -> None:
    algo, envs = learner(demos), sampler()
    evaluator = Evaluator(lambda _: make(REACH), 1, lanes=10)
    before = evaluator.run(algo.policy, Plan(20, 0, TEST))
    for _ in range(45):
        algo.update(envs.collect(algo.policy))
    after = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert before.success <= 0.3
    assert after.success >= 0.9
    assert after.episode_return > 33  # the expert has 36.7 of 40
    algo.close()


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (GAILConfig(), r"'algo.expert.directory' is needed"),
        (GAILConfig(ppo=PPOConfig(gamma=1.0), expert=ExpertConfig("x")), "algo.ppo.gamma between 0 and 1"),
        (GAILConfig(expert=ExpertConfig("x"), discriminator_updates=0), "discriminator_updates must be at least 1"),
        (GAILConfig(expert=ExpertConfig("x"), replay_rollouts=0), "replay_rollouts must be at least 1"),
        (GAILConfig(expert=ExpertConfig("x"), ppo=PPOConfig(lr=0.0)), "lr must be above 0"),
    ],
)
def test_impossible_settings_are_refused(cfg: GAILConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cfg.check()
