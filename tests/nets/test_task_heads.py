"""K networks in one batched product are K networks: equal values and gradients, nothing shared but the trunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roboloop.nets.task_heads import GroupedLinear, places_by_group, with_heads

K, N = 3, 4


def alone(net: nn.Sequential, k: int) -> nn.Sequential:
    """Return one group's network; what is shared is taken as it is."""
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, GroupedLinear):
            own = nn.Linear(*layer.weight.shape[1:])
            with torch.no_grad():
                own.weight.copy_(layer.weight[k].t())
                own.bias.copy_(layer.bias[k])
            layers.append(own)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def gradients(net: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Return the gradients of inputs and weights."""
    x = x.clone().requires_grad_()
    return [*torch.autograd.grad((net(x) * dy).sum(), [x, *net.parameters()])]


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("shared", "own"), [((5, 7), (6, 2)), ((6,), (6, 3)), ((2,), (9, 1)), ((5, 8, 6), (2,))])
def test_networks_with_heads_equal_as_many_separate_ones(
    shared: tuple[int, ...], own: tuple[int, ...], layer_norm: bool
) -> None:
    net = with_heads(K, shared, own, layer_norm)
    x, dy = torch.randn(K * N, shared[0]), torch.randn(K * N, own[-1])
    y, (dx, *found) = net(x), gradients(net, x, dy)
    common = [torch.zeros_like(p) for p in net.parameters()]
    for k in range(K):
        rows, one = slice(k * N, (k + 1) * N), alone(net, k)
        torch.testing.assert_close(y[rows], one(x[rows]))
        one_dx, *one_found = gradients(one, x[rows], dy[rows])
        torch.testing.assert_close(dx[rows], one_dx)
        for i, (grad, own_grad) in enumerate(zip(found, one_found, strict=True)):
            if grad.ndim == own_grad.ndim:
                common[i] += own_grad
            else:
                torch.testing.assert_close(grad[k], own_grad.t())
    for grad, total in zip(found, common, strict=True):
        if grad.ndim == 1 or (grad.ndim == 2 and len(grad) != K):  # of what all have in common, it is the sum
            torch.testing.assert_close(grad, total)


def test_the_gradient_of_one_group_does_not_touch_the_heads_of_another() -> None:
    net, dy = with_heads(K, (5, 8), (6, 2)), torch.zeros(K * N, 2)
    dy[N : 2 * N] = 1.0
    grads = dict(zip(dict(net.named_parameters()), gradients(net, torch.randn(K * N, 5), dy)[1:], strict=True))
    for name in ("2.weight", "2.bias", "4.weight", "4.bias"):
        assert [bool(grad.any()) for grad in grads[name]] == [False, True, False]


def test_weights_are_drawn_as_those_of_plain_layers() -> None:
    layer = GroupedLinear(50, 16, 40)
    for values in (layer.weight, layer.bias):
        assert values.abs().max() <= 0.25
        assert values.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.05)


@pytest.mark.parametrize("group", [[0, 1, 2, 0, 1, 2], [2, 0, 0, 1], [1], [0, 0, 2]])
def test_rows_of_any_order_find_a_place_among_their_group(group: list[int]) -> None:
    place, n = places_by_group(np.array(group), K)
    assert len(set(place.tolist())) == len(group)
    assert (place // n).tolist() == group
    assert n == max(group.count(k) for k in range(K))
