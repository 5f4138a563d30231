"""Soft modules against the formulas written out module by module."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from roboloop.nets.soft_modules import SoftModules, SoftSpec, evenness, likeliest
from roboloop.nets.task_heads import GroupedLinear

ROWS = 9
SHALLOW = SoftSpec(5, 3, 2, 4, modules=2, layers=2, width=6, embedding=(8, 7), gate=(5, 6))
DEEP = SoftSpec(5, 3, 2, 4, modules=4, layers=4, width=3, embedding=(8,), gate=(5,))
ACTOR = SoftSpec(5, 3, 0, 4, modules=3, layers=3, width=6, embedding=(8, 7), gate=(5, 6))
HARD = dataclasses.replace(DEEP, hard=True)
SPECS = {"shallow": SHALLOW, "deep": DEEP, "actor": ACTOR, "hard": HARD}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def make(spec: SoftSpec) -> SoftModules:
    """Return a network of random weights, so large that routings are far from even."""
    torch.manual_seed(0)
    net = SoftModules(spec)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    return net


def inputs(spec: SoftSpec) -> Tensor:
    """Return rows of state, one-hot task and action."""
    task = torch.nn.functional.one_hot(torch.arange(ROWS) % spec.num_tasks, spec.num_tasks).float()
    return torch.cat((torch.randn(ROWS, spec.state_dim), task, torch.randn(ROWS, spec.action_dim)), 1)


def module_by_module(net: SoftModules, x: Tensor) -> Tensor:
    """Return what the network should compute."""
    spec = net.spec
    task = x[:, spec.state_dim : spec.state_dim + spec.num_tasks]
    rest = torch.cat((x[:, : spec.state_dim], x[:, spec.state_dim + spec.num_tasks :]), 1)
    f = net.state(rest)
    e = net.gate((f * net.task(task)).relu())
    routing: list[Tensor] = []
    for i in range(spec.layers):
        cond = e if i == 0 else net.seen[i - 1](torch.cat([p.flatten(1) for p in routing], 1)) * e
        soft = net.route[i](cond.relu()).view(len(x), -1, spec.modules).softmax(2)
        picked = torch.nn.functional.one_hot(soft.argmax(2), spec.modules).float()
        # straight through: forward what was picked, backward what it was picked from
        routing.append(picked + soft - soft.detach() if spec.hard else soft)
    given = list(net.first(f.relu()).split(spec.width, 1))
    for i in range(1, spec.layers):
        fed = [weighed(routing[i - 1][:, to], given) for to in range(spec.modules)]
        layer = net.later[i - 1]
        assert isinstance(layer, GroupedLinear)
        given = [m.relu() @ layer.weight[j] + layer.bias[j] for j, m in enumerate(fed)]
    y: Tensor = net.out(weighed(routing[-1][:, 0], given).relu())
    return y


def weighed(shares: Tensor, given: list[Tensor]) -> Tensor:
    """Return the sum of what modules give, each by its share ``[rows, from]``."""
    return torch.stack([shares[:, j, None] * each for j, each in enumerate(given)]).sum(0)


@each_spec
def test_soft_modules_equal_the_formulas_in_outputs_and_gradients(spec: SoftSpec) -> None:
    net, x, dy = make(spec), inputs(spec).requires_grad_(), torch.randn(ROWS, spec.outputs)
    y, wanted = net(x), module_by_module(net, x)
    torch.testing.assert_close(y, wanted)
    leaves = [x, *net.parameters()]
    for found, by_hand in zip(
        torch.autograd.grad((y * dy).sum(), leaves), torch.autograd.grad((wanted * dy).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(found, by_hand)


@each_spec
def test_routings_sum_to_one_for_each_module_that_is_fed_and_differ_between_tasks(spec: SoftSpec) -> None:
    x = inputs(spec)
    x[:, : spec.state_dim] = 1.0
    _, routings, chances = make(spec).routed(x)
    n = spec.modules
    assert [tuple(p.shape) for p in routings] == [(ROWS, n, n)] * (spec.layers - 1) + [(ROWS, 1, n)]
    for routing, chance in zip(routings, chances, strict=True):
        torch.testing.assert_close(routing.sum(2), torch.ones(routing.shape[:2]))
        assert (routing >= 0).all()
        assert not torch.allclose(chance[0], chance[1])


def test_evenness_by_hand() -> None:
    routing = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    assert evenness(routing).tolist() == pytest.approx([0.5, 0.0])


def test_a_hard_routing_feeds_each_module_from_the_likeliest_alone() -> None:
    chances = torch.tensor([[[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]])
    assert likeliest(chances).tolist() == [[[0, 1, 0], [1, 0, 0]]]
    assert set(likeliest(torch.rand(1000, 2, 5).softmax(2)).unique().tolist()) == {0.0, 1.0}
    _, routings, soft = make(HARD).routed(inputs(HARD))
    for routing, chance in zip(routings, soft, strict=True):
        assert set(routing.unique().tolist()) <= {0.0, 1.0}
        assert torch.equal(routing.argmax(2), chance.argmax(2))
        torch.testing.assert_close(chance.sum(2), torch.ones(chance.shape[:2]))


def test_soft_routings_are_their_own_chances() -> None:
    routed = make(DEEP).routed(inputs(DEEP))
    assert all(a is b for a, b in zip(routed.routing, routed.chances, strict=True))
