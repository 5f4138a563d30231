"""Soft modules against the formulas written out module by module, with autograd's gradients."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from roboloop.nets.flat import Layout, Views
from roboloop.nets.layers import Scratch, as_in_out
from roboloop.nets.mlp import initialise
from roboloop.nets.soft_modules import SoftSpec, _likeliest, evenness

ROWS = 9
SHALLOW = SoftSpec(5, 3, 2, 4, modules=2, layers=2, width=6, embedding=(8, 7), gate=(5, 6))
DEEP = SoftSpec(5, 3, 2, 4, modules=4, layers=4, width=3, embedding=(8,), gate=(5,))
ACTOR = SoftSpec(5, 3, 0, 4, modules=3, layers=3, width=6, embedding=(8, 7), gate=(5, 6))
HARD = dataclasses.replace(DEEP, hard=True)
SPECS = {"shallow": SHALLOW, "deep": DEEP, "actor": ACTOR, "hard": HARD}


def make(spec: SoftSpec) -> tuple[Views, Views]:
    """Return random weights and poisoned gradients."""
    layout = Layout(spec.shapes())
    weights, grads = layout.views(layout.zeros()), layout.views(torch.full((layout.size,), math.nan))
    initialise(weights, np.random.default_rng(0))
    for view in weights.values():
        view.mul_(2.0)  # so that routings are far from even
    return weights, grads


def inputs(spec: SoftSpec) -> Tensor:
    """Return rows of state, one-hot task and action."""
    task = torch.nn.functional.one_hot(torch.arange(ROWS) % spec.num_tasks, spec.num_tasks).float()
    return torch.cat((torch.randn(ROWS, spec.state_dim), task, torch.randn(ROWS, spec.action_dim)), 1)


def by_autograd(spec: SoftSpec, weights: Views, x: Tensor) -> Tensor:
    """Return what the network should compute, one module after another."""

    def linear(name: str, y: Tensor) -> Tensor:
        bias = weights[f"{name}.bias"]
        return y @ as_in_out(weights[f"{name}.weight"], bias) + bias

    def mlp(name: str, y: Tensor, layers: int) -> Tensor:
        for i in range(layers):
            y = linear(f"{name}.linear{i}", y if i == 0 else y.relu())
        return y

    task = x[:, spec.state_dim : spec.state_dim + spec.num_tasks]
    rest = torch.cat((x[:, : spec.state_dim], x[:, spec.state_dim + spec.num_tasks :]), 1)
    f = mlp("state", rest, len(spec.embedding))
    e = mlp("gate", (f * linear("task", task)).relu(), len(spec.gate))
    routing: list[Tensor] = []
    for i in range(spec.layers):
        cond = e if i == 0 else linear(f"seen{i}", torch.cat([p.flatten(1) for p in routing], 1)) * e
        soft = linear(f"{'pick' if spec.hard else 'route'}{i}", cond.relu()).view(len(x), -1, spec.modules).softmax(2)
        picked = torch.nn.functional.one_hot(soft.argmax(2), spec.modules).float()
        # straight through: forward what was picked, backward what it was picked from
        routing.append(picked + soft - soft.detach() if spec.hard else soft)
    first = linear("modules0", f.relu())
    given = list(first.split(spec.width, 1))
    for i in range(1, spec.layers):
        mixed = [
            sum(routing[i - 1][:, to, j, None] * given[j] for j in range(spec.modules)) for to in range(spec.modules)
        ]
        given = [
            m.relu() @ weights[f"modules{i}.weight"][j] + weights[f"modules{i}.bias"][j] for j, m in enumerate(mixed)
        ]
    last = sum(routing[-1][:, 0, j, None] * given[j] for j in range(spec.modules))
    return linear("out", last.relu())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_soft_modules_equal_autograd_in_outputs_weight_and_input_gradients(spec: SoftSpec) -> None:
    weights, grads = make(spec)
    x, dy = inputs(spec), torch.randn(ROWS, spec.outputs)
    leaves = {name: view.clone().requires_grad_() for name, view in weights.items()}
    x_leaf = x.clone().requires_grad_()
    wanted = by_autograd(spec, leaves, x_leaf)
    torch.autograd.backward(wanted, dy)
    net = spec.build(weights, grads, ROWS, Scratch())
    torch.testing.assert_close(net.forward(x), wanted.detach())
    torch.testing.assert_close(net.backward(dy.clone(), need_dx=True), x_leaf.grad)
    for name, leaf in leaves.items():
        torch.testing.assert_close(grads[name], leaf.grad, msg=lambda text, name=name: f"{name}: {text}")
    column = spec.state_dim + spec.num_tasks
    frozen = spec.build(weights, None, ROWS, Scratch())
    frozen.forward(x)
    assert x_leaf.grad is not None
    torch.testing.assert_close(frozen.backward_inputs_from(dy.clone(), column), x_leaf.grad[:, column:])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_backward_over_the_first_rows_ignores_the_others(spec: SoftSpec) -> None:
    weights, grads = make(spec)
    x, dy = inputs(spec), torch.randn(4, spec.outputs)
    net = spec.build(weights, grads, ROWS, Scratch())
    net.forward(x)
    net.backward(dy.clone())
    part = {name: grad.clone() for name, grad in grads.items()}
    small = spec.build(weights, grads, 4, Scratch())
    small.forward(x[:4])
    small.backward(dy.clone())
    for name, grad in grads.items():
        torch.testing.assert_close(part[name], grad)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_routings_sum_to_one_for_each_module_that_is_fed_and_differ_between_tasks(spec: SoftSpec) -> None:
    weights, _ = make(spec)
    net = spec.build(weights, None, ROWS, Scratch())
    x = inputs(spec)
    x[:, : spec.state_dim] = 1.0
    net.forward(x)
    n = spec.modules
    assert [tuple(p.shape) for p in net.routing] == [(ROWS, n, n)] * (spec.layers - 1) + [(ROWS, 1, n)]
    for routing, chances in zip(net.routing, net.chances, strict=True):
        torch.testing.assert_close(routing.sum(2), torch.ones(routing.shape[:2]))
        assert (routing >= 0).all()
        assert not torch.allclose(chances[0], chances[1])


def test_evenness_by_hand() -> None:
    routing = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    assert evenness(routing).tolist() == pytest.approx([0.5, 0.0])


def test_sizes_of_an_actor_are_read_back_from_its_weights() -> None:
    for actor in (ACTOR, dataclasses.replace(ACTOR, hard=True)):
        assert SoftSpec.of(make(actor)[0]) == actor


def test_a_hard_routing_feeds_each_module_from_the_likeliest_alone() -> None:
    chances = torch.tensor([[[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]])
    assert _likeliest(chances).tolist() == [[[0, 1, 0], [1, 0, 0]]]
    weights, _ = make(HARD)
    net = HARD.build(weights, None, ROWS, Scratch())
    net.forward(inputs(HARD))
    for routing, chance in zip(net.routing, net.chances, strict=True):
        assert set(routing.unique().tolist()) <= {0.0, 1.0}
        assert torch.equal(routing.argmax(2), chance.argmax(2))
        torch.testing.assert_close(chance.sum(2), torch.ones(chance.shape[:2]))


def test_soft_routings_are_their_own_chances() -> None:
    net = DEEP.build(make(DEEP)[0], None, ROWS, Scratch())
    net.forward(inputs(DEEP))
    assert all(a is b for a, b in zip(net.routing, net.chances, strict=True))
