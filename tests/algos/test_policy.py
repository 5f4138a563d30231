"""Policies that travel: plain data and flat weights give the same policy elsewhere, bit for bit."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

import numpy as np
import pytest

from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import PPO, make_ppo
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Decision, EnvSpec, PortablePolicy
from tests.algos.learners import saved_policy
from tests.algos.test_sac import SPEC, batches
from tests.algos.toys import Anything, Player

SMALL = {"hidden": (8,), "conv_channels": (4,), "conv_kernels": (4,), "conv_strides": (2,), "conv_features": 8,
         "core_size": 8, "rollout_steps": 4, "minibatches": 1, "epochs": 1, "processes": 1}  # fmt: skip


def rebuilt(policy: PortablePolicy) -> PortablePolicy:
    """Return the policy as another process would build it."""
    data = json.loads(json.dumps(policy.blueprint()))
    module, name = data["kind"].split(":")
    copy: PortablePolicy = getattr(importlib.import_module(module), name).from_blueprint(data)
    assert copy.num_weights == policy.num_weights
    flat = np.full(policy.num_weights, np.nan, np.float32)
    policy.write_weights(flat)
    copy.read_weights(flat, policy.version)
    assert copy.version == policy.version
    return copy


def assert_same(a: Decision, b: Decision) -> None:
    """Compare two decisions bit for bit."""
    for name, left, right in zip(Decision._fields, a, b, strict=True):
        assert (left is None and right is None) or np.array_equal(left, right), name


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_sac_policy_travels(normalize_obs: bool, layer_norm: bool) -> None:
    cfg = SACConfig(hidden=(32, 32), batch_size=16, processes=1, normalize_obs=normalize_obs, layer_norm=layer_norm)
    sac, source, memory = make_sac(cfg, SPEC, 1, seed=0), batches(16), np.zeros((7, 0), np.float32)
    policies = [sac.policy]
    for _ in range(3):
        sac.update(next(source))
    policies += [rebuilt(sac.policy), sac.policy.snapshot(), saved_policy(sac)]
    assert sac.policy.version == 3
    obs = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    for explore in (False, True):
        wanted, *others = (policy.act(obs, memory, explore, np.random.default_rng(2)) for policy in policies)
        for other in others:
            assert_same(wanted, other)
    again = rebuilt(sac.policy)
    assert isinstance(again, LearnerPolicy)
    assert_same(
        again.snapshot().act(obs, memory, False, np.random.default_rng(2)), sac.policy.act(obs, memory, False, None)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{}, {"core": "gru"}, {"core": "lstm", "normalize_obs": True, "normalize_returns": True}]
)
def test_a_ppo_policy_travels(change: dict[str, Any]) -> None:
    cfg = PPOConfig(**{**SMALL, **change})
    ppo = make_ppo(cfg, Anything.spec, 1, num_envs=4, seed=0)
    player = Player(Anything(4), ppo.policy)
    for _ in range(2):
        ppo.update(player.collect(ppo.policy, 4))
    assert ppo.policy.version == 2
    others = [
        rebuilt(ppo.policy),
        ppo.policy.snapshot(),
        LearnerPolicy.from_state(PPO(cfg, Anything.spec), ppo.state()),
    ]
    for rows in (4, 1):
        obs, memory = player.world.obs[:rows], np.random.default_rng(0).normal(size=(rows, ppo.policy.memory_size))
        for explore in (False, True):
            wanted = ppo.policy.act(obs, memory.astype(np.float32), explore, np.random.default_rng(2))
            for other in others:
                assert_same(wanted, other.act(obs, memory.astype(np.float32), explore, np.random.default_rng(2)))


def test_what_a_policy_said_is_not_overwritten_later() -> None:
    ppo = make_ppo(PPOConfig(**{**SMALL, "core": "gru"}), Anything.spec, 1, num_envs=4, seed=0)
    world, memory = Anything(4), np.zeros((4, 8), np.float32)
    said = ppo.policy.act(world.obs, memory, False, np.random.default_rng(0))
    kept = Decision(*(np.copy(x) for x in said if x is not None))
    world.begin(np.ones(4, bool))
    ppo.policy.act(world.obs, said.memory, True, np.random.default_rng(0))
    assert_same(said, kept)


def test_an_action_in_the_environments_own_units_is_not_overwritten_either() -> None:
    spec = dataclasses.replace(SPEC, action_low=(-1.0,) * SPEC.action_dim, action_high=(1.0,) * SPEC.action_dim)
    ppo = make_ppo(
        PPOConfig(**{**SMALL, "shared_trunk": True, "state_dependent_std": True}), spec, 1, num_envs=4, seed=0
    )
    obs, memory = np.ones((4, *spec.obs_shape), np.float32), np.zeros((4, 0), np.float32)
    said = ppo.policy.act(obs, memory, False, np.random.default_rng(0)).action
    kept = said.copy()
    ppo.policy.act(-obs, memory, False, np.random.default_rng(0))
    np.testing.assert_array_equal(said, kept)


def test_not_exploring_draws_nothing() -> None:
    ppo, rng = make_ppo(PPOConfig(**SMALL), Anything.spec, 1, num_envs=4, seed=0), np.random.default_rng(0)
    ppo.policy.act(Anything(4).obs, np.zeros((4, 0), np.float32), False, rng)
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


def test_the_uniform_policy_travels_and_draws_only_what_is_possible() -> None:
    world = Anything(500)
    policy = rebuilt(UniformPolicy(Anything.spec))
    action = policy.act(world.obs, np.zeros((500, 0), np.float32), True, np.random.default_rng(0)).action
    world.step(action)  # asserts that choices were possible
    assert action.dtype == np.float32
    assert action[:, 1].min() < -2.5
    assert action[:, 1].max() > 0.5
    assert set(action[:, 0]) == {0, 1, 2}
    assert set(action[:, 2]) == {0, 1, 2, 3}


def test_specs_travel_as_json() -> None:
    for spec in (SPEC, Anything.spec, dataclasses.replace(SPEC, action_high=(np.inf, 1.0), protocol={"task": "x"})):
        assert spec_from_data(json.loads(json.dumps(spec_to_data(spec)))) == spec


def test_masks_must_fit_the_choices() -> None:
    with pytest.raises(Exception, match="action_mask has 7 entries, but there are 6 choices"):
        make_ppo(PPOConfig(**SMALL), dataclasses.replace(Anything.spec, action_choices=(3, 0, 3)), 1, 4, 0)


def test_choices_need_no_bounds_but_continuous_actions_do() -> None:
    spec = EnvSpec((2,), np.dtype(np.float32), (0.0, 0.0), (0.0, np.inf), 5, action_choices=(1, 0))
    with pytest.raises(Exception, match="finite"):
        make_ppo(PPOConfig(**SMALL), spec, 1, 4, 0)
    make_ppo(PPOConfig(**SMALL), dataclasses.replace(spec, action_high=(0.0, 1.0)), 1, 4, 0)
