"""Convolutions over uint8 pictures.

Where the first stride divides the first window, pictures are kept as blocks of stride x stride pixels: the first layer
is then a small dense convolution over many channels instead of a strided one over three, and the blocks are put
together from whole words instead of bytes. Shift and scale of the pixels are folded into the first layer's weights, so
that no pass over the pixels is spent on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.nets import modules
from roboloop.nets.flat import Views, under
from roboloop.nets.layers import ACTIVATIONS, Linear, Scratch, as_in_out, weight_shape
from roboloop.nets.mlp import Shapes
from roboloop.nets.orthogonal import HIDDEN_GAINS, fill_orthogonal, orthogonal

PART_ROWS = 16
"""Pictures per part: fewer leave oneDNN without work, more do not fit into the cache."""
SMALL_PATCH = 128
"""Where an output looks at fewer numbers, oneDNN's own weight gradient is faster than a product over copied patches."""
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class ConvShape(NamedTuple):
    """Sizes of one convolution; weights lie as ``[out, kernel, kernel, in]``, as channels-last kernels want them."""

    channels_in: int
    height_in: int
    width_in: int
    channels: int
    kernel: int
    stride: int

    @property
    def height(self) -> int:
        """Height of the result."""
        return (self.height_in - self.kernel) // self.stride + 1

    @property
    def width(self) -> int:
        """Width of the result."""
        return (self.width_in - self.kernel) // self.stride + 1

    @property
    def size(self) -> int:
        """Numbers per picture in the result."""
        return self.height * self.width * self.channels

    @property
    def patch(self) -> int:
        """Numbers that one output looks at."""
        return self.kernel * self.kernel * self.channels_in


@dataclass(frozen=True)
class ConvSpec:
    """A stack of convolutions, and one full layer if it has any ``features``, over ``[channels, height, width]``."""

    picture: tuple[int, int, int]
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    features: int
    activation: str

    @property
    def block(self) -> int:
        """Side of the blocks in which the first layer reads pixels; 1 = pixel by pixel."""
        return self.strides[0] if self.kernels[0] % self.strides[0] == 0 else 1

    def layers(self) -> list[ConvShape]:
        """Return the sizes of all convolutions; the first one's in blocks."""
        planes, height, width = self.picture
        planes, height, width = planes * self.block**2, height // self.block, width // self.block
        layers: list[ConvShape] = []
        for channels, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
            unit = 1 if layers else self.block
            layer = ConvShape(planes, height, width, channels, kernel // unit, stride // unit)
            planes, height, width = channels, layer.height, layer.width
            if height < 1 or width < 1:
                shape = "x".join(map(str, self.picture))
                raise ConfigError(f"pictures of {shape} (channels, height, width) are too small for the convolutions")
            layers.append(layer)
        return layers

    @property
    def block_bytes(self) -> int:
        """Bytes per picture as blocks."""
        first = self.layers()[0]
        return first.channels_in * first.height_in * first.width_in

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        shapes: Shapes = {}
        for i, layer in enumerate(self.layers()):
            shapes[f"conv{i}.weight"] = (layer.channels, layer.kernel, layer.kernel, layer.channels_in)
            shapes[f"conv{i}.bias"] = (layer.channels,)
        if self.features:
            shapes["full.weight"] = weight_shape(self.layers()[-1].size, self.features)
            shapes["full.bias"] = (self.features,)
        return shapes

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill with orthogonal weights and zero biases."""
        gain = HIDDEN_GAINS[self.activation]
        for i, layer in enumerate(self.layers()):
            weights[f"conv{i}.bias"].zero_()
            fill_orthogonal(weights[f"conv{i}.weight"].view(layer.channels, -1).t(), gain, rng)
        if self.features:
            bias = weights["full.bias"].zero_()
            fill_orthogonal(as_in_out(weights["full.weight"], bias), gain, rng)

    def to_blocks(self, pixels: Array, out: Array) -> None:
        """Write pictures ``[N, channels, height, width]`` as blocks ``[N, block_bytes]``."""
        rows, planes, side = len(pixels), self.picture[0], self.block
        first = self.layers()[0]
        pixels = pixels[:, :, : first.height_in * side, : first.width_in * side]
        if side == 1:
            for number, target in enumerate(np.moveaxis(out.reshape(rows, *pixels.shape[2:], planes), -1, 0)):
                np.copyto(target, pixels[:, number])  # plane by plane takes half the time of all at once
            return
        if side in _WORDS and pixels.strides[-1] == 1:
            # a block's row of pixels is one word: so many times fewer numbers to move
            words = pixels.view(_WORDS[side])
            source = words.reshape(rows, planes, first.height_in, side, first.width_in).transpose(0, 2, 4, 1, 3)
            target = out.view(_WORDS[side])
        else:
            source = pixels.reshape(rows, planes, first.height_in, side, first.width_in, side)
            source, target = source.transpose(0, 2, 4, 1, 3, 5), out
        np.copyto(target.reshape(source.shape), source)

    def blocks_of(self, pixels: Tensor) -> Tensor:
        """Return pictures ``[N, channels, height, width]`` as blocks, by kernels that an exporter knows."""
        planes, side, first = self.picture[0], self.block, self.layers()[0]
        height, width = first.height_in, first.width_in
        blocks = pixels[:, :, : height * side, : width * side].reshape(-1, planes, height, side, width, side)
        return blocks.permute(0, 2, 4, 1, 3, 5).reshape(-1, self.block_bytes)


def conv_from_data(data: Mapping[str, Any]) -> ConvSpec:
    """Return the spec whose fields came as plain data."""
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
    return ConvSpec(**fields)


class ConvNet(nn.Module):
    """Pictures as blocks ``[N, block_bytes]`` of uint8 to features, or to what the last convolution says.

    Weights lie as ``[out, kernel, kernel, in]`` of blocks. ``pixel_norm [2, channels]``, shift and scale of the pixels
    of each channel, is folded into the first layer's weights, so that no pass over the pixels is spent on it.
    """

    pixel_norm: Tensor

    def __init__(self, spec: ConvSpec, shift: float = 0.0, scale: float = 1 / 255) -> None:
        super().__init__()
        self.spec, self._layers = spec, spec.layers()
        gain = HIDDEN_GAINS[spec.activation]
        sizes = [(s.channels, s.kernel, s.kernel, s.channels_in) for s in self._layers]
        self.weights = nn.ParameterList(orthogonal(torch.empty(size), gain) for size in sizes)
        self.biases = nn.ParameterList(torch.zeros(s.channels) for s in self._layers)
        self.full = nn.Linear(self._layers[-1].size, spec.features) if spec.features else None
        if self.full is not None:
            orthogonal(self.full, gain)
        self.activation = modules.ACTIVATIONS[spec.activation]()
        self.register_buffer("pixel_norm", torch.tensor([[shift], [scale]]).repeat(1, spec.picture[0]))

    @property
    def num_features(self) -> int:
        """Numbers per picture in the result."""
        return self.spec.features or self._layers[-1].size

    def forward(self, blocks: Tensor) -> Tensor:
        """Return ``[N, num_features]``."""
        first = self._layers[0]
        shift, scale = self.pixel_norm.repeat_interleave(self.spec.block**2, dim=1)
        folded = self.weights[0] * scale
        weights = [folded, *self.weights[1:]]
        biases = [self.biases[0] - (folded * shift).sum((1, 2, 3)), *self.biases[1:]]
        x = _nchw(blocks.view(-1, first.height_in, first.width_in, first.channels_in)).float()
        for shape, weight, bias in zip(self._layers, weights, biases, strict=True):
            x = self.activation(torch.conv2d(x, _nchw(weight), bias, shape.stride))
        x = x.permute(0, 2, 3, 1).flatten(1)
        return x if self.full is None else self.activation(self.full(x))


class Convolutions:
    """Pictures as blocks to what the last convolution says, for a fixed number of rows; ``grads=None`` freezes them.

    ``pixel_norm`` is ``[2, channels]``, shift and scale of the pixels of each channel, and may change between passes.
    Only the first ``learned`` rows can be gone back through: what lies between the layers is kept for them alone.
    """

    def __init__(
        self,
        spec: ConvSpec,
        weights: Views,
        grads: Views | None,
        pixel_norm: Tensor,
        rows: int,
        learned: int | None = None,
    ) -> None:
        self._shapes = spec.layers()
        self._act = ACTIVATIONS[spec.activation]
        self._rows, self._pixel_norm, self._repeat = rows, pixel_norm, spec.block**2
        self._learned = rows if learned is None else learned
        layers = range(len(self._shapes))
        self._weights = [(weights[f"conv{i}.weight"], weights[f"conv{i}.bias"]) for i in layers]
        self._grads = [(grads[f"conv{i}.weight"], grads[f"conv{i}.bias"]) for i in layers] if grads else []
        device, part = pixel_norm.device, min(rows, PART_ROWS)
        first = self._shapes[0]
        self._pixels = torch.empty(part, first.height_in, first.width_in, first.channels_in, device=device)
        # memory taken anew for every part would cost more than filling it
        most = max(s.height * s.width * s.patch for s in self._shapes)
        self._patches = torch.empty(part * most if grads else 0, device=device)

        def results(rows: int, shape: ConvShape) -> Tensor:
            return torch.empty(rows, shape.height, shape.width, shape.channels, device=device)

        self._between = [results(self._learned, s) for s in self._shapes[:-1]]
        self._passing = [results(part, s) for s in self._shapes[:-1]]
        self._last = results(rows, self._shapes[-1])

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the last results ``[rows, size]`` of pictures given as blocks ``[rows, block_bytes]`` of uint8."""
        self._blocks = blocks
        weights = [self._folded(), *self._weights[1:]]
        for part in self._parts(0, self._learned) + self._parts(self._learned, self._rows):
            x = self._floats(part)
            for shape, (weight, bias), result in zip(self._shapes, weights, self._results(part), strict=True):
                y = torch.conv2d(_nchw(x), _nchw(weight), bias, shape.stride).permute(0, 2, 3, 1)
                x = self._act.apply(y, result)
        return self._last.view(self._rows, -1)

    def backward(self, dy: Tensor) -> None:
        """Write the gradient of every weight; ``dy [rows, size]`` may cover only the first rows, and is overwritten."""
        rows = dy.shape[0]
        for d_weight, d_bias in self._grads:
            d_weight.zero_()
            d_bias.zero_()
        last = self._shapes[-1]
        d_last = dy.view(rows, last.height, last.width, last.channels)
        for part in self._parts(0, rows):
            self._backward_part(part, d_last[part])
        # y = sum w scale (x - shift) + b was computed as sum w' x + b' with w' = w scale
        shift, scale = self._shift_scale()
        d_weight, d_bias = self._grads[0]
        d_weight.addcmul_(d_bias.view(-1, 1, 1, 1), shift, value=-1.0).mul_(scale)

    def _results(self, part: slice) -> list[Tensor]:
        """Return where each layer's results of some rows go."""
        count = part.stop - part.start
        between = [r[part] for r in self._between] if part.stop <= self._learned else [r[:count] for r in self._passing]
        return [*between, self._last[part]]

    def _backward_part(self, part: slice, dy: Tensor) -> None:
        results = self._results(part)
        for i in reversed(range(len(self._shapes))):
            shape, (d_weight, d_bias) = self._shapes[i], self._grads[i]
            dy = self._act.vjp(dy, results[i])
            x = results[i - 1] if i else self._floats(part)
            if shape.patch < SMALL_PATCH:
                by_weight, by_bias = weight_gradient(dy, x, self._weights[i][0], shape.stride)
                d_weight.add_(by_weight)
                d_bias.add_(by_bias)
            else:
                # as one matrix product over copied patches: up to twice as fast as oneDNN's weight gradient
                d_rows = dy.reshape(-1, shape.channels)
                d_weight.view(shape.channels, -1).addmm_(d_rows.t(), self._copy_patches(x, shape))
                d_bias.add_(d_rows.sum(0))
            if i:
                dy = input_gradient(dy, x, self._weights[i][0], shape.stride)

    def _copy_patches(self, x: Tensor, shape: ConvShape) -> Tensor:
        """Return what each output looks at as rows ``[N * height * width, patch]`` of ``x [N, H, W, C]``."""
        image, line, pixel, _ = x.stride()
        sizes = (len(x), shape.height, shape.width, shape.kernel, shape.kernel * shape.channels_in)
        strides = (image, line * shape.stride, pixel * shape.stride, line, 1)
        out = self._patches[: math.prod(sizes)]
        out.view(sizes).copy_(x.as_strided(sizes, strides, x.storage_offset()))
        return out.view(-1, shape.patch)

    def _folded(self) -> tuple[Tensor, Tensor]:
        """Return the first layer for raw pixels."""
        weight, bias = self._weights[0]
        shift, scale = self._shift_scale()
        folded = weight * scale
        return folded, bias - (folded * shift).sum((1, 2, 3))

    def _shift_scale(self) -> tuple[Tensor, Tensor]:
        shift, scale = self._pixel_norm.repeat_interleave(self._repeat, dim=1)
        return shift, scale

    def _floats(self, part: slice) -> Tensor:
        blocks = self._blocks[part]
        pixels = self._pixels[: len(blocks)]
        pixels.view(len(blocks), -1).copy_(blocks)
        return pixels

    @staticmethod
    def _parts(begin: int, end: int) -> list[slice]:
        return [slice(first, min(first + PART_ROWS, end)) for first in range(begin, end, PART_ROWS)]


class ConvEncoder:
    """Convolutions and a full layer behind them; as ``Convolutions``."""

    def __init__(self, spec: ConvSpec, weights: Views, grads: Views | None, pixel_norm: Tensor, rows: int) -> None:
        self._convs = Convolutions(spec, weights, grads, pixel_norm, rows)
        self._full_act = ACTIVATIONS[spec.activation]()
        device = pixel_norm.device
        y = torch.empty(rows, spec.features, device=device)
        self._full = Linear(under("full", weights), under("full", grads) if grads else None, y, Scratch(device), "dx")

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the features ``[rows, features]`` of pictures given as blocks ``[rows, block_bytes]`` of uint8."""
        return self._full_act.forward(self._full.forward(self._convs.forward(blocks)))

    def backward(self, dy: Tensor) -> None:
        """Write the gradient of every weight; ``dy`` may cover only the first rows of the forward pass."""
        d_flat = self._full.backward(self._full_act.backward(dy, True), True)
        assert d_flat is not None
        self._convs.backward(d_flat)


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the gradient by the inputs ``[N, H, W, C]`` of a convolution."""
    return _gradients(dy, x, weight, stride, [True, False, False])[0].permute(0, 2, 3, 1)


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return the gradient by the weights ``[out, kernel, kernel, in]`` and by the bias."""
    _, d_weight, d_bias = _gradients(dy, x, weight, stride, [False, True, True])
    return d_weight.permute(0, 2, 3, 1), d_bias


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, stride: int, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        _nchw(dy), _nchw(x), _nchw(weight), [len(weight)], [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, wanted
    )
    return found


def _nchw(x: Tensor) -> Tensor:
    """Name the dims as torch does; the memory stays channels-last."""
    return x.permute(0, 3, 1, 2)
