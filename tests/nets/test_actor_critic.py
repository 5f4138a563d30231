"""Whole networks: gradients of every weight against finite differences, acting against windows, first weights."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from roboloop.nets.actor_critic import ActorCritic, ActorCriticSpec, Inputs, Window
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Layout, Views

CONV = ConvSpec((2, 12, 16), (4, 5), (4, 3), (2, 1), 8, "elu")
PLAIN = ActorCriticSpec(5, (), (8, 7), "tanh", "none", 6, False, 3, 2, False, 0.5)
SPECS = {
    "separate": PLAIN,
    "shared": dataclasses.replace(PLAIN, shared_trunk=True, activation="elu"),
    "state-dependent std": dataclasses.replace(PLAIN, state_dependent_std=True),
    "gru": dataclasses.replace(PLAIN, core="gru"),
    "picture": dataclasses.replace(PLAIN, vector_dim=0, convs=(CONV,), num_continuous=0),
    "pictures, vector, lstm": dataclasses.replace(PLAIN, convs=(CONV, CONV), core="lstm", state_dependent_std=True),
}
WINDOW = Window(4, 3)


class Case:
    """A network with random weights and inputs."""

    def __init__(self, spec: ActorCriticSpec, window: Window = WINDOW) -> None:
        self.spec, self.layout = spec, Layout(spec.shapes())
        self.flat, self.grad = self.layout.zeros(), self.layout.zeros()
        spec.initialise(self.weights, np.random.default_rng(0))
        self.norms = [torch.tensor([[100.0, 120.0], [0.01, 0.02]]) for _ in spec.convs]
        rng = torch.Generator().manual_seed(0)
        rows, blocks = window.rows, [conv.block_bytes for conv in spec.convs]
        pictures = tuple(torch.randint(0, 256, (rows, n), dtype=torch.uint8, generator=rng) for n in blocks)
        self.inputs = Inputs(torch.randn(rows, spec.vector_dim, generator=rng), pictures)
        self.memory = 0.5 * torch.randn(window.columns, spec.memory_size, generator=rng)
        self.starts = torch.zeros(window)
        self.starts[2, 1] = 1.0

    @property
    def weights(self) -> Views:
        return self.layout.views(self.flat)

    def net(self, window: Window = WINDOW) -> ActorCritic:
        return self.spec.build(self.weights, self.layout.views(self.grad), self.norms, window)


@pytest.mark.parametrize("name", SPECS)
def test_the_gradient_of_every_weight_is_the_slope_of_the_loss(name: str) -> None:
    case = Case(SPECS[name])
    case.flat += 0.05 * torch.randn(case.flat.shape, generator=torch.Generator().manual_seed(2))
    net, rows = case.net(), 3 * WINDOW.columns  # the last step is seen but not learned from
    d_params, d_value = torch.randn(rows, case.spec.num_logits + 2 * case.spec.num_continuous), torch.randn(rows)

    def loss() -> float:
        params, value = net.forward(case.inputs, case.memory, case.starts)
        return float((params[:rows].double() * d_params).sum() + (value[:rows].double() * d_value).sum())

    loss()
    net.backward(d_params.clone(), d_value.clone())
    grads = {n: g.clone() for n, g in case.layout.views(case.grad).items()}
    for leaf, view in case.weights.items():
        direction = torch.randn(view.shape, generator=torch.Generator().manual_seed(3))
        direction *= 1e-2 / direction.norm()
        before = view.clone()
        view.copy_(before + direction)
        up = loss()
        view.copy_(before - direction)
        slope = (up - loss()) / 2
        view.copy_(before)
        assert slope == pytest.approx(float((grads[leaf] * direction).sum()), rel=0.03, abs=2e-4), leaf


@pytest.mark.parametrize("name", ["gru", "pictures, vector, lstm", "separate"])
def test_a_window_equals_acting_step_by_step(name: str) -> None:
    case = Case(SPECS[name])
    params, value = case.net().forward(case.inputs, case.memory, case.starts)
    actor, memory = case.net(Window(1, WINDOW.columns)), case.memory
    for t in range(WINDOW.steps):
        rows = slice(t * WINDOW.columns, (t + 1) * WINDOW.columns)
        memory = memory * (1 - case.starts[t]).unsqueeze(1)
        inputs = Inputs(case.inputs.vector[rows], tuple(picture[rows] for picture in case.inputs.pictures))
        found_params, found_value = actor.forward(inputs, memory, torch.zeros(1, WINDOW.columns))
        torch.testing.assert_close(found_params, params[rows], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found_value, value[rows], atol=1e-5, rtol=1e-5)
        memory = actor.memory.clone()


@pytest.mark.parametrize("name", SPECS)
def test_the_first_policy_hardly_depends_on_the_state_and_has_the_wanted_deviation(name: str) -> None:
    case = Case(SPECS[name])
    params, value = case.net().forward(case.inputs, case.memory, case.starts)
    choices, box = case.spec.num_logits, case.spec.num_continuous
    assert params[:, : choices + box].abs().max() < 0.1
    torch.testing.assert_close(
        params[:, choices + box :], torch.full((WINDOW.rows, box), math.log(0.5)), atol=0.1, rtol=0
    )
    assert value.std() > 0.01


@pytest.mark.parametrize("name", ["separate", "gru"])
def test_the_value_layer_is_where_the_value_comes_from(name: str) -> None:
    case = Case(SPECS[name])

    def outputs() -> tuple[Tensor, Tensor]:
        params, value = case.net().forward(case.inputs, case.memory, case.starts)
        return params.clone(), value.clone()

    params, value = outputs()
    weight, bias = case.spec.value_layer(case.weights)
    weight.mul_(3.0)
    bias.fill_(0.5)
    other_params, other_value = outputs()
    assert torch.equal(params, other_params)
    torch.testing.assert_close(other_value, 3.0 * value + 0.5)
