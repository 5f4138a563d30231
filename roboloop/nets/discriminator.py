"""The discriminator's network: inputs to one logit per task, high where that task's expert would be."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize


class SpectralLinear(nn.Linear):
    """A layer that stretches nothing (arXiv:1802.05957): its weights over their largest singular value.

    Each ``follow`` is one step of power iteration towards the directions that it stretches most.
    """

    into: Tensor
    out: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("into", normalize(torch.randn(inputs), dim=0))
        self.register_buffer("out", normalize(torch.randn(outputs), dim=0))

    @torch.no_grad()
    def follow(self) -> None:
        """Take one step towards the directions of the present weights."""
        self.out.copy_(normalize(self.weight @ self.into, dim=0))
        self.into.copy_(normalize(self.out @ self.weight, dim=0))

    @property
    def scaled(self) -> Tensor:
        """The weights that it applies."""
        return self.weight / (self.out @ self.weight @ self.into)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b."""
        return linear(x, self.scaled, self.bias)


class DiscriminatorNet(nn.Sequential):
    """Tanh layers shared by all tasks, and a linear head for each."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], num_tasks: int, spectral_norm: bool = False) -> None:
        kind = SpectralLinear if spectral_norm else nn.Linear
        layers = [(kind(a, b), nn.Tanh()) for a, b in itertools.pairwise((inputs, *hidden, num_tasks))]
        super().__init__(*[each for pair in layers for each in pair][:-1])
        self.inputs = inputs

    def follow(self) -> None:
        """Let spectral norms follow the weights."""
        for layer in self:
            if isinstance(layer, SpectralLinear):
                layer.follow()

    def logits(self, x: Tensor) -> Tensor:
        """Return every task's logit of every row ``[N, inputs]``, as ``[K, N]``."""
        y: Tensor = self(x)
        return y.t()

    def own_logits(self, x: Tensor) -> Tensor:
        """Return each task's logit of its own rows ``[K, n, inputs]`` alone, as ``[K, n]``."""
        y: Tensor = self(x)
        return y.diagonal(dim1=0, dim2=2).t()
