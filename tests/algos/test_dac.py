"""Discriminator-actor-critic: what it changes in a batch, and that it learns from an expert what the env never says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roboloop.algos.config import SACConfig
from roboloop.algos.dac import DAC, make_dac, overwrite
from roboloop.algos.dac_config import DACConfig
from roboloop.algos.discriminator_config import DiscriminatorConfig
from roboloop.algos.policy import UniformPolicy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Batch
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBatch, ExpertBuffer
from roboloop.data.replay import Replay
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.run.record import record
from roboloop.sample.buffers import Shape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler

REACH = EnvConfig(id="play/reach", max_episode_steps=40, eval_max_episode_steps=40)
NUM_ENVS = 4


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "reach"
    flags = ["--expert", "--episodes", "20", "--noise", "0.05", "--env.max-episode-steps", "40"]
    assert record(["play/reach", *flags, "--out", str(out)]) == 0
    return out


def learner(demos: Path, **options) -> DAC:
    rates = {"actor_lr": 2e-3, "critic_lr": 2e-3, "alpha_lr": 2e-3, "initial_alpha": 0.1, "gamma": 0.95}
    sac = SACConfig(hidden=(64, 64), batch_size=64, processes=1, shards=1, **rates)
    expert = ExpertConfig(str(demos), end_share=0.5)
    disc = DiscriminatorConfig(hidden=(32, 32), lr=1e-3)
    cfg = DACConfig(sac=sac, discriminator=disc, expert=expert, **options)
    cfg.check()
    return make_dac(cfg, make(REACH).spec, ExpertBuffer([Dataset.open(demos)], expert, seed=0), seed=0)


def test_experts_take_the_place_of_the_first_rows_and_their_ends_are_known() -> None:
    batch = Batch(
        *(np.zeros(shape, np.float32) for shape in ((5, 2), (5, 1), (5,), (5, 2))), np.full(5, 0.9, np.float32)
    )
    ended = np.array([[True], [False]])
    experts = ExpertBatch(np.full((2, 1, 2), 3.0), np.full((2, 1, 1), 4.0), np.full((2, 1, 2), 5.0), ended)
    overwrite(batch, experts, gamma=0.9)
    assert batch.obs[:, 0].tolist() == [3, 3, 0, 0, 0]
    assert batch.action[:, 0].tolist() == [4, 4, 0, 0, 0]
    assert batch.next_obs[:, 1].tolist() == [5, 5, 0, 0, 0]
    assert batch.discount.tolist() == pytest.approx([0.0, 0.9, 0.9, 0.9, 0.9])


def test_the_share_of_the_expert_decays_with_the_updates(demos: Path) -> None:
    algo = learner(demos, expert_fraction=0.5, expert_decay=0.9)
    assert algo.expert_rows == 32
    algo.num_updates = 10
    assert algo.expert_rows == int(64 * 0.5 * 0.9**10)
    algo.close()


def test_the_environments_own_reward_is_never_looked_at(demos: Path) -> None:
    spec = make(REACH).spec
    rng = np.random.default_rng(0)
    states = []
    for reward in (0.0, 1e9):
        algo = learner(demos)
        rng = np.random.default_rng(0)
        for _ in range(3):
            obs, next_obs = rng.normal(size=(2, 64, *spec.obs_shape)).astype(np.float32)
            action = rng.uniform(-1, 1, (64, spec.action_dim)).astype(np.float32)
            discount = np.full(64, 0.95, np.float32)
            algo.update(Batch(obs, action, np.full(64, reward, np.float32), next_obs, discount))
        states.append({name: value.tolist() for name, value in algo.policy.state()["net"].items()})
        algo.close()
    assert states[0] == states[1]


def test_it_learns_to_reach_from_an_expert_alone(demos: Path) -> None:
    algo = learner(demos)
    shape = Shape(make(REACH).spec, steps=1, num_envs=NUM_ENVS)
    sampler = SerialSampler(lambda _: make(REACH), plans(NUM_ENVS, 1, seed=0), shape)
    store = Replay(50_000, sampler.spec, NUM_ENVS, algo.needs, seed=0)
    evaluator = Evaluator(lambda _: make(REACH), 1, lanes=10)
    before = evaluator.run(algo.policy, Plan(20, 0, TEST))
    for _ in range(250):
        store.add(sampler.collect(UniformPolicy(sampler.spec)))
    for _ in range(1200):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    after = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert before.success <= 0.3
    assert after.success >= 0.7
    assert after.episode_return > 30  # the expert has 36.7 of 40
    algo.close()


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (DACConfig(), r"'algo.expert.directory' is needed"),
        (DACConfig(sac=SACConfig(n_step=3), expert=ExpertConfig("x")), "leave algo.sac.n_step at 1, not 3"),
        (DACConfig(sac=SACConfig(gamma=1.0), expert=ExpertConfig("x")), "algo.sac.gamma between 0 and 1"),
        (DACConfig(expert=ExpertConfig("x"), expert_fraction=1.5), "expert_fraction must lie in"),
        (DACConfig(expert=ExpertConfig("x"), discriminator=DiscriminatorConfig(lr=0.0)), "lr must be above 0"),
    ],
)
def test_impossible_settings_are_refused(cfg: DACConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cfg.check()
