"""Hand-written backward passes against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from roboloop.nets.flat import ALIGN, Layout, Views, under
from roboloop.nets.layers import ACTIVATIONS, NORM_EPS, Scratch, as_in_out
from roboloop.nets.mlp import MLP, CriticSet, MLPSpec, initialise
from roboloop.nets.orthogonal import fill_orthogonal

SPECS = [MLPSpec((5, 7, 6, 3)), MLPSpec((5, 7, 6, 9, 3)), MLPSpec((5, 7, 6, 3), layer_norm=True)]


def make(spec: MLPSpec) -> tuple[Views, Views]:
    """Return random weights and poisoned gradients."""
    layout = Layout(spec.shapes())
    weights, grads = layout.views(layout.zeros()), layout.views(torch.full((layout.size,), math.nan))
    initialise(weights, np.random.default_rng(0))
    return weights, grads


def by_autograd(spec: MLPSpec, weights: Views, x: Tensor) -> Tensor:
    """Return what the network should compute, as a differentiable graph."""
    for i in range(spec.num_linear):
        bias = weights[f"linear{i}.bias"]
        x = x @ as_in_out(weights[f"linear{i}.weight"], bias) + bias
        if i < spec.num_linear - 1:
            if spec.layer_norm:
                x = functional.layer_norm(x, x.shape[1:], weights[f"norm{i}.gain"], weights[f"norm{i}.bias"], NORM_EPS)
            x = x.relu()
    return x


def test_views_alias_the_flat_vector_and_start_on_cache_lines() -> None:
    layout = Layout({"a": (3, 5), "b": (2,)})
    flat = layout.zeros()
    views = layout.views(flat)
    views["b"].fill_(7.0)
    assert flat[ALIGN : ALIGN + 2].tolist() == [7.0, 7.0]
    assert flat.sum() == 14.0
    assert all(view.data_ptr() % 64 == flat.data_ptr() % 64 for view in views.values())


@pytest.mark.parametrize("spec", SPECS)
def test_mlp_equals_autograd_in_outputs_weight_and_input_gradients(spec: MLPSpec) -> None:
    weights, grads = make(spec)
    x, dy = torch.randn(11, 5), torch.randn(11, 3)
    leaves = {name: view.clone().requires_grad_() for name, view in weights.items()}
    x_leaf = x.clone().requires_grad_()
    wanted = by_autograd(spec, leaves, x_leaf)
    torch.autograd.backward(wanted, dy)
    net = MLP(spec, weights, grads, rows=11, scratch=Scratch())
    torch.testing.assert_close(net.forward(x), wanted.detach())
    net.backward(dy.clone())
    for name, leaf in leaves.items():
        torch.testing.assert_close(grads[name], leaf.grad)
    frozen = MLP(spec, weights, None, rows=11, scratch=Scratch())
    frozen.forward(x)
    assert x_leaf.grad is not None
    torch.testing.assert_close(frozen.backward_inputs_from(dy.clone(), 2), x_leaf.grad[:, 2:])


@pytest.mark.parametrize("spec", SPECS)
def test_backward_over_the_first_rows_ignores_the_others(spec: MLPSpec) -> None:
    weights, grads = make(spec)
    x, dy = torch.randn(10, 5), torch.randn(4, 3)
    net = MLP(spec, weights, grads, rows=10, scratch=Scratch())
    net.forward(x)
    net.backward(dy.clone())
    part = {name: grad.clone() for name, grad in grads.items()}
    small = MLP(spec, weights, grads, rows=4, scratch=Scratch())
    small.forward(x[:4])
    small.backward(dy.clone())
    for name, grad in grads.items():
        torch.testing.assert_close(part[name], grad)


def test_ensemble_members_are_independent_networks_on_the_same_input() -> None:
    spec = MLPSpec((5, 8, 1))
    layout = Layout(CriticSet.shapes(spec, 3))
    weights, grads = layout.views(layout.zeros()), layout.views(layout.zeros())
    initialise(weights, np.random.default_rng(1))
    x, dq = torch.randn(6, 5), torch.randn(3, 6)
    critics = CriticSet(spec, 3, weights, grads, rows=6, scratch=Scratch())
    q = critics.forward(x)
    critics.backward(dq)
    for e in range(3):
        leaves = {name: view.clone().requires_grad_() for name, view in under(str(e), weights).items()}
        wanted = by_autograd(spec, leaves, x)[:, 0]
        torch.testing.assert_close(q[e], wanted.detach())
        torch.autograd.backward(wanted, dq[e])
        for name, leaf in leaves.items():
            torch.testing.assert_close(grads[f"{e}.{name}"], leaf.grad)


def test_spec_is_read_back_from_weights() -> None:
    for spec in (*SPECS, MLPSpec((3, *(4,) * 12, 2))):
        assert MLPSpec.of(make(spec)[0]) == spec


@pytest.mark.parametrize(("name", "plain"), [("relu", torch.relu), ("tanh", torch.tanh), ("elu", functional.elu)])
def test_activations_equal_autograd_in_place_and_into_other_memory(
    name: str, plain: Callable[[Tensor], Tensor]
) -> None:
    x, dy = torch.linspace(-9, 9, 101).view(-1, 1), torch.randn(101, 1)
    leaf = x.clone().requires_grad_()
    wanted = plain(leaf)
    torch.autograd.backward(wanted, dy)
    layer = ACTIVATIONS[name]()
    y = layer.forward(x.clone())
    torch.testing.assert_close(y, wanted.detach())
    assert torch.equal(layer.apply(x.clone(), torch.empty_like(x)), y)
    torch.testing.assert_close(layer.backward(dy.clone(), need_dx=True), leaf.grad)


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5)])
def test_orthogonal_weights_keep_lengths_up_to_the_gain(shape: tuple[int, int]) -> None:
    matrix = torch.empty(shape)
    fill_orthogonal(matrix, 2.0, np.random.default_rng(0))
    short = matrix if shape[0] <= shape[1] else matrix.t()
    torch.testing.assert_close(short @ short.t(), 4.0 * torch.eye(min(shape)), atol=1e-5, rtol=0)
