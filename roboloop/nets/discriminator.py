"""The discriminator's network: inputs to one logit per task, high where that task's expert would be.

The only network here that learns by autograd: its gradient penalty is the derivative of a derivative, for which a
hand-written backward pass would be the harder thing to trust. So forward passes are plain functions of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from roboloop.nets.flat import Layout, Views, prefixed
from roboloop.nets.layers import as_in_out
from roboloop.nets.mlp import MLPSpec, initialise


@dataclass(frozen=True)
class DiscriminatorNet:
    """Tanh layers shared by all tasks, and a linear head for each; with spectral norms no layer stretches anything."""

    inputs: int
    hidden: tuple[int, ...]
    num_tasks: int
    spectral_norm: bool = False

    @property
    def layout(self) -> Layout:
        """What is learned."""
        return Layout(MLPSpec((self.inputs, *self.hidden, self.num_tasks), activation="tanh").shapes())

    @property
    def directions(self) -> Layout:
        """What follows the weights: per layer the direction that it stretches most, on both sides."""
        widths = (self.inputs, *self.hidden, self.num_tasks) if self.spectral_norm else ()
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(len(widths) - 1):
            shapes |= prefixed(f"linear{i}", {"in": (widths[i],), "out": (widths[i + 1],)})
        return Layout(shapes)

    def initialise(self, weights: Views, directions: Views, rng: np.random.Generator) -> None:
        """Fill weights as every network's, and directions at random."""
        initialise(weights, rng)
        for view in directions.values():
            view.copy_(normalize(torch.from_numpy(rng.standard_normal(tuple(view.shape)).astype(np.float32)), dim=0))

    def follow(self, weights: Views, directions: Views) -> None:
        """Take one step of power iteration towards the directions of the present weights."""
        if not self.spectral_norm:
            return
        for i in range(len(self.hidden) + 1):
            matrix = as_in_out(weights[f"linear{i}.weight"], weights[f"linear{i}.bias"]).detach()
            left, right = directions[f"linear{i}.in"], directions[f"linear{i}.out"]
            right.copy_(normalize(left @ matrix, dim=0))
            left.copy_(normalize(matrix @ right, dim=0))

    def _layer(self, weights: Views, directions: Views, i: int) -> tuple[Tensor, Tensor]:
        bias = weights[f"linear{i}.bias"]
        matrix = as_in_out(weights[f"linear{i}.weight"], bias)
        if self.spectral_norm:
            matrix = matrix / (directions[f"linear{i}.in"] @ matrix @ directions[f"linear{i}.out"])
        return matrix, bias

    def _features(self, weights: Views, directions: Views, x: Tensor) -> Tensor:
        for i in range(len(self.hidden)):
            matrix, bias = self._layer(weights, directions, i)
            x = torch.addmm(bias, x, matrix).tanh()
        return x

    def logits(self, weights: Views, directions: Views, x: Tensor) -> Tensor:
        """Return every task's logit of every row ``[N, inputs]``, as ``[K, N]``."""
        matrix, bias = self._layer(weights, directions, len(self.hidden))
        return torch.addmm(bias, self._features(weights, directions, x), matrix).t()

    def own_logits(self, weights: Views, directions: Views, x: Tensor) -> Tensor:
        """Return each task's logit of its own rows ``[K, n, inputs]`` alone, as ``[K, n]``."""
        matrix, bias = self._layer(weights, directions, len(self.hidden))
        features = self._features(weights, directions, x.flatten(0, 1)).view(*x.shape[:2], -1)
        return torch.baddbmm(bias[:, None, None], features, matrix.t().unsqueeze(2)).squeeze(2)
