"""An offline learner in plain PyTorch, brought from outside: it learns, resumes exactly, and two processes are one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from roboloop.algos.learner.config import DatasetConfig
from roboloop.algos.learner.data_scale import DataScale
from roboloop.algos.learner.dataset_learner import DatasetLearner, record_of_dataset
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Learner, Loss, Step
from roboloop.algos.learner.optimizer import Adam
from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec, WindowBatch
from roboloop.nets.modules import mlp
from tests.algos.test_sac import assert_same_bits
from tests.algos.test_shards import needs_two_cores

SPEC = EnvSpec((3,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 1.0), 50)
SCALE = DataScale(np.zeros(3), np.ones(3), 10.0)


@dataclass(frozen=True)
class WeightedConfig(DatasetConfig):
    """Settings of what follows."""

    name: str = "weighted"
    context: int = 4
    batch_size: int = 16
    lr: float = 3e-3
    warmup_updates: int = 5
    hidden: tuple[int, ...] = (32,)


class Weighted(Learner):
    """Cloning of what did better than a learned value says, arXiv:2006.15134: policy and value, a step each."""

    cfg: WeightedConfig

    def build(self) -> None:
        self.actor = mlp([self.obs_dim, *self.cfg.hidden, self.action_dim])
        self.value = mlp([self.obs_dim, *self.cfg.hidden, 1])

    def steps(self) -> tuple[Step, ...]:
        adam = Adam(self.cfg.lr, self.cfg.weight_decay)
        return Step("value_loss", of={"value": adam}), Step("policy_loss", of={"actor": adam}, every=2)

    def value_loss(self, batch: Rows, noise: Rows) -> Loss:
        gap = batch.return_to_go - self.value(batch.obs).squeeze(1)
        return (batch.weight * gap.square()).sum(), {"t": (batch.weight * batch.t).sum()}

    def policy_loss(self, batch: Rows, noise: Rows) -> Loss:
        with torch.no_grad():
            good = softplus(batch.return_to_go - self.value(batch.obs).squeeze(1))
        error = (self.actor(batch.obs).tanh() - batch.action).square().mean(1)
        return (batch.weight * good * error).sum(), {}

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        return self.actor(obs).tanh()


def windows(seed: int = 0) -> Iterator[WindowBatch]:
    """Yield windows of which some steps are padding; the action to take is a function of the state."""
    rng, lead = np.random.default_rng(seed), (16, 4)
    while True:
        obs = rng.normal(size=(*lead, 3)).astype(np.float32)
        action = np.stack((2 * np.tanh(obs[..., 0]), 0.5 + 0.5 * np.tanh(obs[..., 1])), -1)
        mask = np.arange(4) >= rng.integers(0, 4, (16, 1))
        mask[0] = True
        to_go, t = obs.sum(-1), np.broadcast_to(np.arange(4, dtype=np.int32), lead)
        yield WindowBatch(obs, action, to_go, t, mask)


def make(**change) -> DatasetLearner:
    cfg = dataclasses.replace(WeightedConfig(processes=1), **change)
    return DatasetLearner(Weighted, cfg, SPEC, SCALE, seed=0)


def test_it_learns_what_to_do() -> None:
    algo = make()
    for batch in itertools.islice(windows(), 600):
        metrics = algo.update(batch)
    assert metrics["value_loss"] < 0.1
    obs = np.random.default_rng(9).normal(size=(50, 3)).astype(np.float32)
    said = algo.policy.act(obs, np.zeros((50, 0), np.float32), False, np.random.default_rng(0)).action
    np.testing.assert_allclose(said[:, 0], 2 * np.tanh(obs[:, 0]), atol=0.5)


def test_weights_are_those_of_a_mean_over_valid_steps_and_step_sizes_warm_up() -> None:
    algo, batch = make(shards=4), next(windows())
    first, second = algo.update(batch), algo.update(batch)
    assert first["t"] == pytest.approx(float(batch.t[batch.mask].mean()), rel=1e-5)
    assert [first["lr"], second["lr"]] == pytest.approx([3e-3 / 5, 2 * 3e-3 / 5])
    assert "policy_loss" in first
    assert "policy_loss" not in second, "it is taken at each second update"


def test_state_and_load_continue_bit_for_bit() -> None:
    first, second, source = make(), make(), windows()
    for batch in itertools.islice(source, 3):
        first.update(batch)
    second.load(first.state())
    for batch in itertools.islice(source, 3):
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


@needs_two_cores
@pytest.mark.parametrize("change", [{"processes": 2}, {"replay_kernels": False}])
def test_resources_change_no_bit(change: dict[str, int]) -> None:
    one, other, source = make(), make(**change), windows()
    other.wait_until_ready()
    for batch in itertools.islice(source, 4):
        assert one.update(batch) == other.update(batch)
    assert_same_bits(one.state(), other.state())
    other.close()


def test_a_record_says_that_it_learns_from_a_dataset_and_what_it_cannot_take() -> None:
    about = record_of_dataset("weighted", WeightedConfig, Weighted)
    assert (about.learns_from, about.frame_stack) == ("dataset", False)
    chooses = dataclasses.replace(SPEC, action_choices=(2, 0))
    with pytest.raises(ConfigError, match="Weighted needs continuous actions"):
        DatasetLearner(Weighted, WeightedConfig(), chooses, SCALE, seed=0)
