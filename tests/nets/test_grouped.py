"""K networks in one batched product are K networks: equal values and gradients, nothing shared but the trunk."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from roboloop.nets.flat import Layout, Views
from roboloop.nets.grouped import places_by_group
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLP, MLPSpec, initialise

K, N = 3, 4


def make(spec: MLPSpec) -> tuple[Views, Views]:
    """Return random weights and poisoned gradients."""
    layout = Layout(spec.shapes())
    weights, grads = layout.views(layout.zeros()), layout.views(torch.full((layout.size,), math.nan))
    initialise(weights, np.random.default_rng(0))
    return weights, grads


def alone(views: Views, k: int) -> Views:
    """Return the views of one group's network; what is shared is taken as it is."""
    return {
        name: view[k] if view.ndim > 2 or ("bias" in name and view.ndim == 2) else view for name, view in views.items()
    }


@pytest.mark.parametrize("widths", [(5, 7, 6, 2), (6, 6, 3), (2, 9, 1)])
def test_grouped_networks_equal_as_many_separate_ones_in_values_and_all_gradients(widths: tuple[int, ...]) -> None:
    spec, single = MLPSpec(widths, groups=K), MLPSpec(widths)
    weights, grads = make(spec)
    x, dy = torch.randn(K * N, widths[0]), torch.randn(K * N, widths[-1])
    net = spec.build(weights, grads, K * N, Scratch())
    y = net.forward(x).clone()
    dx = net.backward(dy.clone(), need_dx=True)
    assert dx is not None
    frozen = spec.build(weights, None, K * N, Scratch())
    frozen.forward(x)
    from_one = frozen.backward_inputs_from(dy.clone(), 1)
    for k in range(K):
        rows, one_grads = slice(k * N, (k + 1) * N), make(single)[1]
        one = MLP(single, alone(weights, k), one_grads, N, Scratch())
        torch.testing.assert_close(y[rows], one.forward(x[rows]))
        one_dx = one.backward(dy[rows].clone(), need_dx=True)
        assert one_dx is not None
        torch.testing.assert_close(dx[rows], one_dx)
        torch.testing.assert_close(from_one[rows], one_dx[:, 1:])
        for name, grad in one_grads.items():
            torch.testing.assert_close(alone(grads, k)[name], grad)


def test_a_shared_trunk_gets_the_sum_of_all_heads_gradients() -> None:
    spec, single = MLPSpec((5, 8, 6, 2), groups=K, num_shared=1), MLPSpec((5, 8, 6, 2))
    weights, grads = make(spec)
    assert weights["linear0.weight"].shape == (5, 8)
    assert weights["linear1.weight"].shape == (K, 6, 8)
    x, dy = torch.randn(K * N, 5), torch.randn(K * N, 2)
    net = spec.build(weights, grads, K * N, Scratch())
    y = net.forward(x).clone()
    net.backward(dy.clone())
    trunk = torch.zeros(5, 8)
    for k in range(K):
        rows, one_grads = slice(k * N, (k + 1) * N), make(single)[1]
        one = MLP(single, alone(weights, k), one_grads, N, Scratch())
        torch.testing.assert_close(y[rows], one.forward(x[rows]))
        one.backward(dy[rows].clone())
        trunk += one_grads["linear0.weight"]
        torch.testing.assert_close(grads["linear2.weight"][k], one_grads["linear2.weight"])
    torch.testing.assert_close(grads["linear0.weight"], trunk)


def test_the_gradient_of_one_group_does_not_touch_the_heads_of_another() -> None:
    spec = MLPSpec((5, 8, 6, 2), groups=K, num_shared=1)
    weights, grads = make(spec)
    net = spec.build(weights, grads, K * N, Scratch())
    net.forward(torch.randn(K * N, 5))
    dy = torch.zeros(K * N, 2)
    dy[N : 2 * N] = 1.0
    net.backward(dy)
    for name in ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"):
        touched = [bool(grad.any()) for grad in grads[name]]
        assert touched == [False, True, False]


@pytest.mark.parametrize("num_shared", [0, 1])
def test_blocks_of_rows_are_passes_after_one_another_and_backward_may_cover_the_first(num_shared: int) -> None:
    spec = MLPSpec((5, 8, 2), groups=K, num_shared=num_shared)
    weights, grads = make(spec)
    x, dy = torch.randn(2 * K * N, 5), torch.randn(2 * K * N, 2)
    both = spec.build(weights, grads, 2 * K * N, Scratch(), blocks=2)
    y = both.forward(x).clone()
    single = spec.build(weights, grads, K * N, Scratch())
    for half in (slice(0, K * N), slice(K * N, None)):
        torch.testing.assert_close(y[half], single.forward(x[half]))
    single.forward(x[: K * N])
    single.backward(dy[: K * N].clone())
    wanted = {name: grad.clone() for name, grad in grads.items()}
    both.backward(dy[: K * N].clone())
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name])
    single.forward(x[K * N :])
    single.backward(dy[K * N :].clone())
    total = {name: wanted[name] + grad for name, grad in grads.items()}
    both.backward(dy.clone())
    for name, grad in grads.items():
        torch.testing.assert_close(grad, total[name])


@pytest.mark.parametrize("spec", [MLPSpec((5, 8, 2), groups=K), MLPSpec((5, 8, 8, 2), groups=K, num_shared=2)])
def test_groups_are_read_back_from_weights(spec: MLPSpec) -> None:
    assert MLPSpec.of(make(spec)[0]) == spec


@pytest.mark.parametrize("group", [[0, 1, 2, 0, 1, 2], [2, 0, 0, 1], [1], [0, 0, 2]])
def test_rows_of_any_order_find_a_place_among_their_group(group: list[int]) -> None:
    place, n = places_by_group(np.array(group), K)
    assert len(set(place.tolist())) == len(group)
    assert (place // n).tolist() == group
    assert n == max(group.count(k) for k in range(K))
