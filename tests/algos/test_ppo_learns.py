"""PPO learns what it must, on worlds of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roboloop.algos.learner.rollout_learner import RolloutLearner
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import make_ppo
from tests.algos.toys import Aim, Look, Match, Player, Recall, World

FAST = {"hidden": (32,), "rollout_steps": 16, "minibatches": 2, "epochs": 4, "lr": 5e-3, "processes": 1, "gamma": 0.9}


def learn(world: type[World], updates: int, num_envs: int = 16, **change: Any) -> tuple[RolloutLearner, float]:
    """Return a trained PPO and the mean reward of its last rollouts."""
    cfg = PPOConfig(**{**FAST, **change})
    ppo = make_ppo(cfg, world.spec, 1, num_envs, seed=0)
    player = Player(world(num_envs), ppo.policy)
    rewards = []
    for update in range(updates):
        ppo.progress = update / updates
        rollout = player.collect(ppo.policy, cfg.rollout_steps)
        rewards.append(float(rollout.reward.mean()))
        ppo.update(rollout)
    return ppo, float(np.mean(rewards[-5:]))


@pytest.mark.parametrize("change", [{}, {"shared_trunk": True, "activation": "elu", "kl_uniform_coef": 0.001}])
def test_it_names_the_context(change: dict[str, Any]) -> None:
    assert learn(Match, 20, **change)[1] > 0.9


@pytest.mark.parametrize(
    "change",
    [{"lr_schedule": "linear"}, {"normalize_obs": True, "normalize_returns": True, "state_dependent_std": True}],
)
def test_it_aims_in_the_units_of_the_action(change: dict[str, Any]) -> None:
    ppo, reward = learn(Aim, 40, lr=1e-2, initial_std=0.5, **change)
    assert reward > -0.4  # at first the deviation alone costs 2.25
    obs = np.array([[-0.8], [0.0], [0.8]], np.float32)
    found = ppo.policy.act(obs, np.zeros((3, 0), np.float32), False, np.random.default_rng(0)).action
    np.testing.assert_allclose(found, obs, atol=0.35)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_it_remembers_what_was_shown_once(core: str) -> None:
    change = {"core": core, "core_size": 16, "gamma": 0.99, "lr": 1e-2}
    assert learn(Recall, 40, **change)[1] * 4 > 0.9  # one reward in four steps


def test_without_memory_it_can_only_guess() -> None:
    assert learn(Recall, 15)[1] * 4 < 0.7


def test_it_sees() -> None:
    net = {"conv_channels": (8, 8), "conv_kernels": (4, 3), "conv_strides": (2, 2), "conv_features": 16, "hidden": (8,)}
    assert learn(Look, 12, **net, lr=3e-3, normalize_obs=True)[1] > 0.9


def test_vtrace_learns_from_a_policy_that_lags() -> None:
    """Rollouts are learned from four updates after they were collected."""
    cfg = PPOConfig(**{**FAST, "vtrace": True, "epochs": 1, "minibatches": 1})
    ppo = make_ppo(cfg, Match.spec, 1, 16, seed=0)
    player, queue, rewards = Player(Match(16), ppo.policy), [], []
    for _ in range(80):
        rollout = player.collect(ppo.policy, 16)
        rewards.append(float(rollout.reward.mean()))
        queue.append(rollout)
        if len(queue) > 4:
            metrics = ppo.update(queue.pop(0))
    assert metrics["lag_mean"] == 4.0
    assert np.mean(rewards[-5:]) > 0.9
