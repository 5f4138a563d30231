"""Convolutions over blocks of pixels against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from roboloop.core.errors import ConfigError
from roboloop.nets.conv import ConvNet, ConvSpec
from roboloop.nets.flat import Views

SPECS = [
    ConvSpec((3, 20, 28), (6, 5), (8, 3), (4, 1), 7, "elu"),  # blocks of 4
    ConvSpec((2, 19, 23), (6, 5, 4), (4, 3, 2), (2, 2, 1), 7, "tanh"),  # blocks of 2, and pixels that nobody looks at
    ConvSpec((1, 12, 13), (4,), (5,), (2,), 7, "relu"),  # the stride does not divide the window: pixel by pixel
    ConvSpec((1, 13, 12), (4,), (6,), (3,), 7, "elu"),  # blocks of 3, which no word holds
]
ACTIVATIONS = {"elu": functional.elu, "tanh": torch.tanh, "relu": functional.relu}


def by_formula(spec: ConvSpec, weights: Views, pixels: Tensor, norm: Tensor) -> Tensor:
    """Return what the encoder should compute, from plain pictures and plain convolutions."""
    act, side = ACTIVATIONS[spec.activation], spec.block
    x = (pixels - norm[0].view(-1, 1, 1)) * norm[1].view(-1, 1, 1)
    for i, stride in enumerate(spec.strides):
        weight = weights[f"conv{i}.weight"]
        if i == 0:  # [out, ky, kx, (channel, y, x)] of blocks -> [out, channel, ky * y, kx * x] of pixels
            out, kernel = len(weight), spec.kernels[0]
            weight = weight.view(out, kernel // side, kernel // side, -1, side, side).permute(0, 3, 1, 4, 2, 5)
            weight = weight.reshape(out, -1, kernel, kernel)
        else:
            weight = weight.permute(0, 3, 1, 2)
        x = act(functional.conv2d(x, weight, weights[f"conv{i}.bias"], stride))
    x = x.permute(0, 2, 3, 1).flatten(1)
    return act(x @ weights["full.weight"] + weights["full.bias"])


@pytest.mark.parametrize("spec", SPECS)
def test_blocks_give_what_plain_convolutions_over_normalised_pixels_give(spec: ConvSpec) -> None:
    net = ConvNet(spec)
    for bias in net.biases:
        bias.data.normal_()
    net.pixel_norm.copy_(
        torch.stack((torch.full((spec.picture[0],), 90.0), torch.linspace(0.01, 0.02, spec.picture[0])))
    )
    pixels = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (5, *spec.picture), dtype=np.uint8))
    blocks = np.empty((5, spec.block_bytes), np.uint8)
    spec.to_blocks(pixels.numpy(), blocks)
    assert torch.equal(spec.blocks_of(pixels), torch.from_numpy(blocks))
    found, dy = net(torch.from_numpy(blocks)), torch.randn(5, spec.features)
    torch.autograd.backward(found, dy)
    leaves = {f"conv{i}.weight": w.detach().clone().requires_grad_() for i, w in enumerate(net.weights)}
    leaves |= {f"conv{i}.bias": b.detach().clone().requires_grad_() for i, b in enumerate(net.biases)}
    full = {"full.weight": net.full.weight.detach().t(), "full.bias": net.full.bias.detach()}
    wanted = by_formula(spec, leaves | full, pixels.float(), net.pixel_norm)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    torch.autograd.backward(wanted, dy)
    for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        torch.testing.assert_close(weight.grad, leaves[f"conv{i}.weight"].grad, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(bias.grad, leaves[f"conv{i}.bias"].grad, atol=2e-4, rtol=1e-3)


def test_blocks_are_read_from_fields_of_records() -> None:
    spec = SPECS[0]
    records = np.zeros(5, np.dtype([("vector", np.float32, (3,)), ("image", np.uint8, spec.picture)]))
    records["image"] = np.random.default_rng(0).integers(0, 256, records["image"].shape)
    direct, plain = np.empty((2, 5, spec.block_bytes), np.uint8)
    spec.to_blocks(records["image"], direct)
    spec.to_blocks(records["image"].copy(), plain)
    assert (direct == plain).all()


def test_pictures_that_are_too_small_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"96x96x3 .* too small"):
        ConvSpec((96, 96, 3), (32, 64), (8, 4), (4, 2), 512, "elu").layers()
