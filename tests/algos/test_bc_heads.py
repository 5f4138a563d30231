"""Behaviour cloning with a head for each task: by hand, isolated, the same in any number of shards, and it learns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from roboloop.algos.imitation.cloning import behaviour_cloning
from roboloop.algos.imitation.config import BCConfig
from roboloop.algos.learner.data_scale import DataScale
from roboloop.algos.learner.dataset_learner import DatasetLearner
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, WindowBatch
from tests.algos.test_sac import assert_same_bits

NAMES = ("a", "b", "c")
AUXILIARY = EnvSpec((4,), np.dtype(np.float32), (-1.0, -2.0), (1.0, 2.0), 50, tasks=NAMES)
SET = dataclasses.replace(AUXILIARY, obs_shape=(7,), one_task_each=True)
SMALL = BCConfig(net="heads", hidden=(16,), head_hidden=(8,), batch_size=12, lr=1e-2, shards=2, processes=1)


def make(spec: EnvSpec, seed: int = 0, **options) -> DatasetLearner:
    dim = spec.obs_shape[0]
    scale = DataScale(np.linspace(-0.2, 0.2, dim), np.linspace(0.5, 2, dim), 1.0)
    return behaviour_cloning(dataclasses.replace(SMALL, **options), spec, scale, seed)


def windows(rng: np.random.Generator, spec: EnvSpec, size: int = 12, steps: int = 1) -> WindowBatch:
    """Return windows of random steps that lie task by task."""
    obs = rng.normal(size=(size, steps, *spec.obs_shape)).astype(np.float32)
    if spec.own_tasks:
        obs[:, :, 4:] = np.repeat(np.eye(3), size // 3, axis=0)[:, None]
    action = rng.uniform((-1, -2), (1, 2), (size, steps, 2)).astype(np.float32)
    lead = (size, steps)
    return WindowBatch(obs, action, np.zeros(lead, np.float32), np.zeros(lead, np.int32), np.ones(lead, bool))


def acted(algo: DatasetLearner, obs: Array) -> Array:
    memory = np.zeros((len(obs), 0), np.float32)
    return algo.policy.act(obs, memory, False, np.random.default_rng(0)).action


def by_hand(algo: DatasetLearner, obs: Array, task: int) -> Array:
    """Return the actions of one head: the shared layer, then its own two."""
    state = algo.policy.state()
    weights = state["weights"]
    shift, scale = torch.from_numpy(state["norm"]["numbers"]).view(2, -1)
    x = (torch.from_numpy(obs) - shift) * scale
    for i in range(3):
        weight, bias = weights[f"net.layers.{2 * i}.weight"], weights[f"net.layers.{2 * i}.bias"]
        weight, bias = (weight.mT, bias) if i == 0 else (weight[task], bias[task])
        x = x @ weight + bias
        x = x.relu() if i < 2 else x.tanh()
    return x.numpy() * np.array([1.0, 2.0])


def test_rows_of_a_set_are_acted_on_by_the_head_of_their_task_in_any_order() -> None:
    algo, rng = make(SET), np.random.default_rng(0)
    algo.update(windows(rng, SET))
    obs = rng.normal(size=(5, 7)).astype(np.float32)
    order = [2, 0, 2, 1, 2]
    obs[:, 4:] = np.eye(3)[order]
    found = acted(algo, obs)
    for row, task in enumerate(order):
        np.testing.assert_allclose(found[row], by_hand(algo, obs[row : row + 1], task)[0], atol=1e-5)


def test_of_auxiliary_tasks_the_main_ones_head_acts() -> None:
    algo, rng = make(AUXILIARY), np.random.default_rng(0)
    algo.update(windows(rng, AUXILIARY))
    obs = rng.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(acted(algo, obs), by_hand(algo, obs, 0), atol=1e-5)


def test_a_head_never_feels_what_other_tasks_do() -> None:
    batch = windows(np.random.default_rng(0), AUXILIARY)
    other = batch._replace(action=batch.action.copy())
    other.action[4:8] *= -1.0  # of task b
    nets = []
    for each in (batch, other):
        algo = make(AUXILIARY)
        algo.update(each)
        nets.append(algo.policy.state()["weights"])
    for name in ("net.layers.2.weight", "net.layers.2.bias", "net.layers.4.weight", "net.layers.4.bias"):
        same = [torch.equal(nets[0][name][k], nets[1][name][k]) for k in range(3)]
        assert same == [True, False, True], name
    assert not torch.equal(nets[0]["net.layers.0.weight"], nets[1]["net.layers.0.weight"]), (
        "the shared layer learns from all"
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_shards_of_a_batch_hold_as_many_rows_of_each_task(steps: int) -> None:
    batch = windows(np.random.default_rng(0), AUXILIARY, steps=steps)
    one, two = (make(AUXILIARY, shards=shards, context=steps, max_grad_norm=1e9) for shards in (1, 2))
    found = [algo.update(batch) for algo in (one, two)]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)
    assert found[0]["grad_norm"] == pytest.approx(found[1]["grad_norm"], rel=1e-5)


def test_state_and_load_continue_bit_for_bit() -> None:
    first, second, rng = make(SET), make(SET, seed=1), np.random.default_rng(0)
    first.update(windows(rng, SET))
    second.load(first.state())
    batch = windows(rng, SET)
    assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


def test_tasks_that_contradict_each_other_are_all_learned() -> None:
    """In the same states task a wants one thing, b the opposite, and c nothing."""
    algo, rng = make(AUXILIARY, batch_size=48, lr=3e-3), np.random.default_rng(0)
    sign = np.repeat([1.0, -1.0, 0.0], 16)[:, None, None]
    for _ in range(400):
        batch = windows(rng, AUXILIARY, 48)
        wanted = np.tanh(batch.obs[:, :, :2]) * np.array([0.9, 1.8]) * sign
        loss = algo.update(batch._replace(action=wanted.astype(np.float32)))["loss"]
    assert loss < 0.02
    obs = rng.normal(size=(50, 4)).astype(np.float32)
    right = np.tanh(obs[:, :2]) * np.array([0.9, 1.8])
    assert np.abs(acted(algo, obs) - right).mean() < 0.15
    assert np.abs(by_hand(algo, obs, 1) + right).mean() < 0.15


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(ConfigError, match="batch_size 16 does not split into 3 tasks x 2 shards of equal size"):
        make(AUXILIARY, batch_size=16)
    with pytest.raises(ConfigError, match="head_hidden needs at least one layer of at least one unit"):
        make(AUXILIARY, head_hidden=(0,))
