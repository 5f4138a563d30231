"""Whole networks: acting against windows, which numbers have a slope, first weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from roboloop.algos.ppo.config import PPOConfig
from roboloop.core.types import EnvSpec
from roboloop.nets.actions import ActionHead
from roboloop.nets.actor_critic import ActorCritic, Said, conv_specs
from roboloop.nets.observations import Fields

CHOICES = (3, 0, 0)
SIZES = {"hidden": (8, 7), "core_size": 6, "initial_std": 0.5}
CONVS = {"conv_channels": (4, 5), "conv_kernels": (4, 3), "conv_strides": (2, 1), "conv_features": 8}
CASES: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"shared_trunk": True, "activation": "elu"},
    "state-dependent std": {"state_dependent_std": True},
    "residual": {"net": "residual"},
    "gru": {"core": "gru"},
    "picture": {"pictures": 1, "vector": False},
    "pictures, vector, lstm": {"pictures": 2, "core": "lstm", "state_dependent_std": True},
}
STEPS, COLUMNS = 4, 3


class Case:
    """A network and random inputs."""

    def __init__(self, pictures: int = 0, vector: bool = True, **change: Any) -> None:
        self.cfg = PPOConfig(**{**SIZES, **CONVS, **change})
        names = [(f"camera{i}", np.uint8, (2, 12, 16)) for i in range(pictures)]
        dtype = np.dtype([*names, *([("vector", np.float32, (5,))] if vector else [])])
        spec = EnvSpec((), dtype, (0.0,) * 3, (1.0,) * 3, 9, action_choices=CHOICES)
        fields, self.head, rng = Fields.of(spec, 1), ActionHead(CHOICES), torch.Generator().manual_seed(0)
        reads = conv_specs(self.cfg, fields)
        torch.manual_seed(0)
        self.net = ActorCritic(self.cfg, fields, reads, self.head)
        for each in self.net.actor.pictures:
            each.pixel_norm.copy_(torch.tensor([[100.0, 120.0], [0.01, 0.02]]))
        self.vector = torch.randn(STEPS, COLUMNS, fields.vector_dim, generator=rng)
        self.pictures = [
            torch.randint(0, 256, (STEPS, COLUMNS, r.block_bytes), dtype=torch.uint8, generator=rng) for r in reads
        ]
        self.memory = 0.5 * torch.randn(COLUMNS, self.net.memory_size, generator=rng)
        self.starts = torch.zeros(STEPS, COLUMNS)
        self.starts[2, 1] = 1.0

    def said(self) -> Said:
        return self.net(self.vector, self.pictures, self.memory, self.starts)


@pytest.mark.parametrize("name", CASES)
def test_every_number_that_a_network_has_is_learned(name: str) -> None:
    case = Case(**CASES[name])
    with torch.no_grad():
        for parameter in case.net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    said = case.said()
    weights = torch.randn(said.params.shape), torch.randn(said.value.shape)
    torch.autograd.backward((said.params * weights[0]).sum() + (said.value * weights[1]).sum())
    for leaf, parameter in case.net.named_parameters():
        assert parameter.grad is not None, leaf
        assert parameter.grad.abs().max() > 0, leaf


@pytest.mark.parametrize("name", ["gru", "pictures, vector, lstm", "separate"])
def test_a_window_equals_acting_step_by_step(name: str) -> None:
    case = Case(**CASES[name])
    whole, memory = case.said(), case.memory
    for t in range(STEPS):
        rows, now = slice(t * COLUMNS, (t + 1) * COLUMNS), slice(t, t + 1)
        memory = memory * (1 - case.starts[t]).unsqueeze(1)
        with torch.no_grad():
            found = case.net(case.vector[now], [picture[now] for picture in case.pictures], memory, None)
        torch.testing.assert_close(found.params, whole.params[rows], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.value, whole.value[rows], atol=1e-5, rtol=1e-5)
        memory = found.memory


@pytest.mark.parametrize("name", CASES)
def test_the_first_policy_hardly_depends_on_the_state_and_has_the_wanted_deviation(name: str) -> None:
    params, value, _ = Case(**CASES[name]).said()
    assert params[:, :5].abs().max() < 0.1
    wanted = torch.full((STEPS * COLUMNS, 2), math.log(0.5))
    torch.testing.assert_close(params[:, 5:], wanted, atol=0.1, rtol=0)
    assert value.std() > 0.01


@pytest.mark.parametrize("name", CASES)
def test_a_deviation_can_be_set_for_all_states_and_nothing_else_changes(name: str) -> None:
    case = Case(**CASES[name])
    before = case.said()
    case.net.set_std(0.3)
    after = case.said()
    assert torch.equal(after.params[:, :5], before.params[:, :5])
    torch.testing.assert_close(after.params[:, 5:], torch.full((STEPS * COLUMNS, 2), math.log(0.3)))


@pytest.mark.parametrize("name", ["separate", "gru"])
def test_the_value_layer_is_where_the_value_comes_from(name: str) -> None:
    case = Case(**CASES[name])
    params, value, _ = case.said()
    with torch.no_grad():
        case.net.value.weight.mul_(3.0)
        case.net.value.bias.fill_(0.5)
    other_params, other_value, _ = case.said()
    assert torch.equal(params, other_params)
    torch.testing.assert_close(other_value, 3.0 * value + 0.5)


def test_only_a_shared_trunk_hears_of_the_value_and_of_the_policy() -> None:
    def pulled(case: Case, of: Tensor) -> list[bool]:
        found = torch.autograd.grad(of.sum(), [*case.net.trunks.parameters()], allow_unused=True)
        return [slope is not None for slope in found]

    case = Case()
    said, half = case.said(), len([*case.net.trunks.parameters()]) // 2
    assert pulled(case, said.params) == [True] * half + [False] * half
    said = case.said()
    assert pulled(case, said.value) == [False] * half + [True] * half
    shared = Case(shared_trunk=True)
    assert all(pulled(shared, shared.said().value))
