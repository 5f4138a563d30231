"""Convolutions over uint8 pictures.

Where the first stride divides the first window, pictures are kept as blocks of stride x stride pixels: the first layer
is then a small dense convolution over many channels instead of a strided one over three, and the blocks are put
together from whole words instead of bytes. Shift and scale of the pixels are folded into the first layer's weights, so
that no pass over the pixels is spent on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.nets import modules
from roboloop.nets.orthogonal import HIDDEN_GAINS, orthogonal

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


PART_ROWS = 16
"""Pictures that are learned from at once on a CPU: what lies between the layers of more does not fit into its cache."""


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
        blocks = blocks.view(-1, first.height_in, first.width_in, first.channels_in)
        in_parts = torch.is_grad_enabled() and blocks.device.type == "cpu"
        parts = torch.split(blocks, PART_ROWS) if in_parts else (blocks,)
        found = [self._convolved(part, weights, biases) for part in parts]
        x = found[0] if len(found) == 1 else torch.cat(found)
        return x if self.full is None else self.activation(self.full(x))

    def _convolved(self, blocks: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        """Return what the last convolution says, ``[N, size]``."""
        x = _nchw(blocks).float()
        for shape, weight, bias in zip(self._layers, weights, biases, strict=True):
            x = self.activation(torch.conv2d(x, _nchw(weight), bias, shape.stride))
        return x.permute(0, 2, 3, 1).flatten(1)


def _nchw(x: Tensor) -> Tensor:
    """Name the dims as torch does; the memory stays channels-last."""
    return x.permute(0, 3, 1, 2)
