"""A Decision Transformer does what its target return says; behaviour cloning, which is not told, cannot."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.algos.imitation.cloning import behaviour_cloning
from roboloop.algos.imitation.config import BCConfig, DTConfig
from roboloop.algos.imitation.transformer import TransformerPolicy, decision_transformer
from roboloop.algos.learner.data_scale import DataScale
from roboloop.algos.learner.dataset_learner import DatasetLearner
from roboloop.core.types import Array, EnvSpec, PortablePolicy, RewardAware, WindowBatch

LENGTH = 6
CHAIN = EnvSpec((1,), np.dtype(np.float32), (0.0,), (1.0,), LENGTH, action_choices=(2,))
"""Each step pays its action. Whoever recorded took some return at once and rested; the state says nothing."""
SHARE = EnvSpec((1,), np.dtype(np.float32), (-1.0,), (3.0,), LENGTH)
"""Each step pays its action, which the recorder held for a whole episode."""
SCALE = DataScale(np.zeros(1), np.ones(1), float(LENGTH))


def chain_episode(rng: np.random.Generator) -> Array:
    """Return the actions of one episode."""
    return (np.arange(LENGTH) < rng.integers(0, LENGTH + 1)).astype(np.float32)


def share_episode(rng: np.random.Generator) -> Array:
    """Return the actions of one episode."""
    return np.full(LENGTH, rng.uniform(-1.0, 3.0), np.float32)


def windows(spec: EnvSpec, size: int, context: int, rng: np.random.Generator) -> WindowBatch:
    """Return windows of recorded episodes, padded where they begin before the episode."""
    episode = chain_episode if spec is CHAIN else share_episode
    action = np.stack([episode(rng) for _ in range(size)])
    to_go = np.cumsum(action[:, ::-1], axis=1)[:, ::-1]
    last = rng.integers(0, LENGTH, (size, 1))
    t = last + np.arange(1 - context, 1)
    mask, rows = t >= 0, np.maximum(t, 0)
    obs = np.ones((size, context, 1), np.float32)
    taken, left = (np.take_along_axis(a, rows, axis=1) for a in (action, to_go))
    return WindowBatch(obs, taken[..., None], left.astype(np.float32), rows.astype(np.int32), mask)


def achieved(policy: PortablePolicy) -> float:
    """Return what one episode brings."""
    memory, total = np.zeros((1, policy.memory_size), np.float32), 0.0
    for _ in range(LENGTH):
        said = policy.act(np.ones((1, 1), np.float32), memory, False, np.random.default_rng(0))
        total += float(said.action[0, 0])
        memory = said.memory
        if isinstance(policy, RewardAware):
            memory = policy.observe_reward(memory, said.action[:, 0])
    return total


def learn(algo: DatasetLearner, spec: EnvSpec, updates: int) -> float:
    """Return the mean loss of the last updates."""
    rng = np.random.default_rng(0)
    losses = [algo.update(windows(spec, algo.cfg.batch_size, algo.cfg.context, rng))["loss"] for _ in range(updates)]
    return float(np.mean(losses[-20:]))


FAST = DTConfig(context=4, width=32, layers=2, dropout=0.0, batch_size=32, lr=2e-3, warmup_updates=20, processes=1)


def test_choices_follow_the_target_to_the_letter() -> None:
    algo = decision_transformer(FAST, CHAIN, SCALE, 0.0, seed=0)
    assert learn(algo, CHAIN, 250) < 0.02
    assert isinstance(algo.policy, TransformerPolicy)
    assert [achieved(algo.policy.with_target(float(r))) for r in range(LENGTH + 1)] == list(range(LENGTH + 1))


def test_continuous_actions_follow_the_target() -> None:
    algo = decision_transformer(FAST, SHARE, SCALE, 0.0, seed=0)
    assert learn(algo, SHARE, 300) < 0.01
    targets = [-3.0, 0.0, 6.0, 12.0]
    assert isinstance(algo.policy, TransformerPolicy)
    assert [achieved(algo.policy.with_target(r)) for r in targets] == pytest.approx(targets, abs=1.2)


def test_behaviour_cloning_cannot_since_nobody_tells_it() -> None:
    algo = behaviour_cloning(BCConfig(hidden=(32,), batch_size=64, lr=3e-3, processes=1), CHAIN, SCALE, seed=0)
    assert learn(algo, CHAIN, 150) > 0.5
    assert achieved(algo.policy) in (0.0, float(LENGTH)), "the state never changes, so what it does neither"
    assert not isinstance(algo.policy, RewardAware)


def test_behaviour_cloning_learns_what_the_state_says() -> None:
    spec = EnvSpec((2,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 3.0), 1, action_choices=(0, 4))
    rng = np.random.default_rng(0)
    scale = DataScale(np.array([0.0, 1.5]), np.array([1.0, 1.0]), 1.0)
    algo = behaviour_cloning(BCConfig(hidden=(64,), lr=3e-3, processes=1), spec, scale, seed=0)
    ones = np.ones((256, 1), np.float32)
    for _ in range(300):
        obs = np.stack((rng.uniform(-1, 1, (256, 1)), rng.integers(0, 4, (256, 1))), axis=-1).astype(np.float32)
        metrics = algo.update(WindowBatch(obs, obs.copy(), ones, ones.astype(np.int32), ones > 0))
    assert metrics["accuracy"] > 0.99
    assert metrics["squared_error"] < 1e-3
    said = algo.policy.act(np.array([[0.5, 2.0]], np.float32), np.zeros((1, 0), np.float32), False, rng)
    np.testing.assert_allclose(said.action, [[0.5, 2.0]], atol=0.1)
