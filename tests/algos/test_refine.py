"""Refinement: it begins as the start acts, is charged by hand-checked numbers, and stops where it is told to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from roboloop.algos.frozen import freeze
from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.algos.simgan.refine import Refine, TargetScore, begin_with, make_refine
from roboloop.algos.simgan.refine_config import RefineConfig
from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec, Rollout
from roboloop.envs.frozen import FrozenPolicy
from tests.algos.test_frozen import SPEC, policy
from tests.algos.test_gail import Learner

STD = 0.3
NUM_ENVS, STEPS = 4, 8


def start(**options) -> FrozenPolicy:
    return freeze(policy(**options), std=STD)


def config(**options) -> RefineConfig:
    nets = {name: options.pop(name) for name in ("normalize_obs", "state_dependent_std", "hidden") if name in options}
    ppo = PPOConfig(**{"hidden": (16, 8), "rollout_steps": STEPS, "processes": 1, "epochs": 2, **nets})
    return RefineConfig(ppo=ppo, start="x", start_std=STD, **options)


def made(cfg: RefineConfig, guard=None, **options) -> Refine:
    cfg.check()
    return make_refine(cfg, SPEC, start(**options), guard, NUM_ENVS, seed=3)


def rollout_of(algo: Refine, seed: int = 0) -> Rollout:
    """Return steps of the algorithm's own policy through states that are drawn."""
    rng, none = np.random.default_rng(seed), np.zeros((NUM_ENVS, 0), np.float32)
    obs = rng.normal(0, 2, (STEPS + 1, NUM_ENVS, 5)).astype(np.float32)
    decisions = [algo.policy.act(x, none, True, rng) for x in obs]
    action, log_prob = (np.stack([getattr(d, name) for d in decisions[:-1]]) for name in ("action", "log_prob"))
    reward, flags = rng.normal(size=log_prob.shape).astype(np.float32), np.zeros(log_prob.shape, bool)
    value = np.stack([d.value for d in decisions])
    version = np.full(NUM_ENVS, algo.policy.version)
    return Rollout(obs, action, reward, reward, flags, flags, log_prob, value, none, version, [])


@pytest.mark.parametrize("options", [{}, {"normalize_obs": True}], ids=["plain", "scaled"])
@pytest.mark.parametrize("state_dependent_std", [False, True])
def test_it_begins_as_the_start_acts_with_a_fresh_critic(options, state_dependent_std) -> None:
    algo = made(config(state_dependent_std=state_dependent_std, **options), **options)
    obs, none = np.random.default_rng(0).normal(0, 3, (9, 5)).astype(np.float32), np.zeros((9, 0), np.float32)
    ours = algo.policy.act(obs, none, True, np.random.default_rng(1)).action
    frozen = start(**options)
    mean, std = frozen.mean_and_std(obs)
    noise = np.random.default_rng(1).standard_normal(mean.shape, dtype=np.float32)
    np.testing.assert_allclose(frozen.to_unit(ours), mean + std * noise, atol=1e-5)
    assert algo.update(rollout_of(algo))["kl_start"] == pytest.approx(0.0, abs=1e-5)
    fresh = make_ppo(config(state_dependent_std=state_dependent_std, **options).ppo, SPEC, 1, NUM_ENVS, seed=3)
    untouched = made(config(state_dependent_std=state_dependent_std, **options), **options)
    critic = [name for name in fresh.policy.state()["weights"] if name.startswith(("net.trunks.1", "net.value"))]
    assert len(critic) == 6
    for name in critic:
        assert (untouched.policy.state()["weights"][name] == fresh.policy.state()["weights"][name]).all()
    for each in (algo, fresh, untouched):
        each.close()


def test_the_scale_of_observations_stays_that_of_the_start() -> None:
    algo = made(config(normalize_obs=True), normalize_obs=True)
    for seed in range(3):
        algo.update(rollout_of(algo, seed))
    np.testing.assert_array_equal(algo.policy.norm.numbers.reshape(2, -1), start(normalize_obs=True).layers.obs_norm)
    algo.close()


def test_without_guard_and_charge_it_is_ppo_with_a_warm_start() -> None:
    cfg = config()
    algo, plain = made(cfg), make_ppo(cfg.ppo, SPEC, 1, NUM_ENVS, seed=3)
    begin_with(plain, start().layers, STD)
    for seed in range(3):
        rollout = rollout_of(algo, seed)
        theirs = plain.update(rollout)
        ours = algo.update(rollout)
        assert {name: ours[name] for name in theirs} == theirs
    assert ours["kl_start"] > 1e-4
    algo.close()
    plain.close()


class Stub:
    """A guard with an opinion that is known."""

    max_lag = 0

    def look(self, rollout: Rollout) -> TargetScore:
        logit = np.tile(np.array([-3.0, 0.5, 2.0, -1.0], np.float32), (STEPS, 1))
        return TargetScore(logit, np.tile([True, True, True, False], (STEPS, 1)))


def test_a_step_is_charged_for_leaving_the_start_and_for_what_looks_unlike_the_target() -> None:
    algo = made(config(kl_coef=0.2, disc_coef=0.5, floor=1.0), Stub())
    rollout = rollout_of(algo)
    rollout = rollout._replace(log_prob=rollout.log_prob + 0.7)  # as if it had moved away
    algo._rl.close()
    algo._rl = rl = Learner()
    told = algo.update(rollout)
    # the last environment has no whole window: nothing is known of it
    wanted = rollout.reward - 0.2 * 0.7 - 0.5 * np.array([4.0, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(rl.rollout.reward, wanted, atol=1e-5)
    assert (rl.rollout.raw_reward == rollout.raw_reward).all()
    assert told["kl_start"] == pytest.approx(math.exp(-0.7) - 1 + 0.7, abs=1e-5)
    assert told["guard_fraction"] == pytest.approx(2 / 3)
    score = np.mean([1 / (1 + math.exp(-x)) for x in (-3.0, 0.5, 2.0)])
    assert told["d_score"] == pytest.approx(score)


def test_the_log_probability_of_the_start_is_that_of_a_policy_with_its_numbers() -> None:
    algo = made(config())
    rollout = rollout_of(algo)
    np.testing.assert_allclose(algo._log_prob_of_start(rollout), rollout.log_prob, atol=1e-4)
    algo.close()


def test_beyond_the_limit_nothing_is_learned() -> None:
    algo = made(config(kl_limit=0.1))
    rollout = rollout_of(algo)
    before = {name: value.clone() for name, value in algo.policy.state()["weights"].items()}
    told = algo.update(rollout._replace(log_prob=rollout.log_prob + 0.6))
    assert told["skipped"] == 1.0
    assert algo.num_updates == 0
    assert all((value == before[name]).all() for name, value in algo.policy.state()["weights"].items())
    assert algo.update(rollout)["skipped"] == 0.0
    assert algo.num_updates > 0
    algo.close()


def test_the_charge_keeps_it_near_the_start() -> None:
    """The reward pulls the first action up without end; the charge is what it costs to go there."""
    gone = {}
    for kl_coef in (0.0, 1.0):
        cfg = replace(config(kl_coef=kl_coef), ppo=replace(config().ppo, lr=1e-2))
        algo = made(cfg)
        for seed in range(30):
            rollout = rollout_of(algo, seed)
            algo.update(rollout._replace(reward=rollout.action[:, :, 0]))
        gone[kl_coef] = algo.update(rollout_of(algo, 99))["kl_start"]
        algo.close()
    assert gone[1.0] < 0.3 * gone[0.0]


def test_a_discriminators_opinion_does_not_depend_on_lives() -> None:
    cfg = DiscriminatorConfig(hidden=(8,), use_action=False, ends="alive")
    spec = EnvSpec((3,), np.dtype(np.float32), (), (), 0)
    disc = Discriminator(cfg, spec, EpisodeCounts(np.array([100.0]), np.array([10.0])), 0.9, seed=0)
    rng = np.random.default_rng(0)
    steps = Steps(rng.normal(size=(6, 3)).astype(np.float32), np.zeros((6, 0), np.float32), np.zeros(6, bool))
    disc.update(steps, Steps(*(column[None] for column in steps)), None)
    offset = disc.rewards(*steps)[0] - disc.logits(steps)[0].numpy()
    assert np.ptp(offset) < 1e-6
    assert abs(offset[0]) > 0.1


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (RefineConfig(), "'algo.start' is needed"),
        (RefineConfig(start="x", start_std=0.0), "start_std must be above 0"),
        (RefineConfig(start="x", kl_limit=0.0), "'algo.kl_limit' must be above 0 or none"),
        (RefineConfig(start="x", kl_coef=-1.0), "kl_coef must not be negative"),
        (RefineConfig(start="x", ppo=PPOConfig(shared_trunk=True)), "begins with a fresh critic"),
    ],
)
def test_impossible_settings_are_refused(cfg: RefineConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cfg.check()


def test_a_start_that_does_not_fit_is_refused_in_one_line() -> None:
    other = replace(SPEC, obs_shape=(6,))
    for spec, cfg, options, said in (
        (other, config(), {}, r"the start takes 5 numbers and gives 2, the environment has observations \(6,\)"),
        (replace(SPEC, action_high=(2.0, 9.0)), config(), {}, "other bounds than the environment's"),
        (SPEC, config(hidden=(16,)), {}, r"'algo.ppo.hidden' must be \[16, 8\], as the start's, not \[16\]"),
        (SPEC, config(), {"activation": "relu"}, "'algo.ppo.activation' must be relu"),
        (SPEC, config(), {"normalize_obs": True}, "'algo.ppo.normalize_obs' must be True"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_refine(cfg, spec, start(**options), None, NUM_ENVS, seed=0)
