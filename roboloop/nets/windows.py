"""What networks over windows of steps share: windows, states, and how networks learn from them and act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.core.types import Array
from roboloop.nets.conv import ConvEncoder, ConvSpec
from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.mlp import Shapes

TOKENS = ("return", "state", "action")
"""What a transformer sees of a step, in this order."""
RETURN, STATE, ACTION = range(len(TOKENS))
UNSEEN = -1e9
"""Score of a token that must not be looked at: its probability is exactly zero."""


class WindowInputs(NamedTuple):
    """N windows of K steps as networks take them; row ``window * K + step``, all finite, also where padded."""

    state: Tensor  # [N * K, S] what the encoder says of the states
    action: Tensor  # [N * K, A] encoded
    return_to_go: Tensor  # [N * K, 1] scaled
    t: Tensor  # [N * K] int32, step within the episode
    valid: Tensor  # [N, K] one, or zero where padded


class WindowNet(Protocol):
    """A network for a fixed number of windows; ``forward`` keeps what ``backward`` needs."""

    def forward(self, windows: WindowInputs, rng: np.random.Generator) -> Tensor:
        """Return one row of outputs per step; whatever is random comes from ``rng``."""
        ...

    def backward(self, dy: Tensor) -> Tensor | None:
        """Write the gradient of every weight; return that of the states' first columns, which pictures fill."""
        ...


class WindowActor(Protocol):
    """The same network acting step by step; what it must remember lies in the caller's ``memory [B, memory_size]``."""

    memory_size: int

    def step(self, state: Tensor, memory: Array) -> tuple[Tensor, Array]:
        """Return the outputs of states ``[B, S]``, and the memory after them as a new array."""
        ...

    def note_action(self, memory: Array, action: Array) -> None:
        """Write the encoded actions ``[B, A]`` that were chosen into the memory."""
        ...

    def note_reward(self, memory: Array, reward: Array) -> Array:
        """Return the memory after the rewards ``[B]`` of these actions."""
        ...


class WindowNetSpec(Protocol):
    """All sizes of a network over windows."""

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        ...

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill with the first weights."""
        ...

    def learner(self, weights: Views, grads: Views, windows: int) -> WindowNet:
        """Return the network that learns from so many windows at once."""
        ...

    def actor(self, weights: Views, return_norm: Tensor) -> WindowActor:
        """Return the network that acts; ``return_norm`` is the scale of returns and the return to reach."""
        ...


@dataclass(frozen=True)
class StateSpec:
    """What becomes of an observation before the network proper: features of its pictures, then its vector."""

    vector_dim: int
    convs: tuple[ConvSpec, ...]

    @property
    def num_features(self) -> int:
        """Columns that come from pictures."""
        return sum(conv.features for conv in self.convs)

    @property
    def width(self) -> int:
        """All columns."""
        return self.num_features + self.vector_dim

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        return {n: s for i, conv in enumerate(self.convs) for n, s in prefixed(f"picture{i}", conv.shapes()).items()}

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill with the first weights."""
        for i, conv in enumerate(self.convs):
            conv.initialise(under(f"picture{i}", weights), rng)


class StateEncoder:
    """Vectors and pictures to states, for a fixed number of rows; ``grads=None`` freezes the weights."""

    def __init__(
        self, spec: StateSpec, weights: Views, grads: Views | None, pixel_norms: list[Tensor], rows: int
    ) -> None:
        self._widths = [conv.features for conv in spec.convs]
        self._encoders = [
            ConvEncoder(conv, under(name, weights), under(name, grads) if grads else None, norm, rows)
            for name, conv, norm in zip((f"picture{i}" for i in range(len(spec.convs))), spec.convs, pixel_norms,
                                        strict=True)
        ]  # fmt: skip

    def forward(self, vector: Tensor, pictures: list[Tensor]) -> Tensor:
        """Return the states of normalised vectors ``[rows, D]`` and pictures as blocks ``[rows, block_bytes]``."""
        if not self._encoders:
            return vector
        features = [encoder.forward(blocks) for encoder, blocks in zip(self._encoders, pictures, strict=True)]
        return torch.cat([*features, vector], dim=1)

    def backward(self, d_features: Tensor) -> None:
        """Write the gradient of every weight, given that of the columns that come from pictures."""
        # activations go back in place: every encoder needs rows of its own
        parts = [part.contiguous() for part in torch.split(d_features, self._widths, dim=1)]
        for encoder, part in zip(self._encoders, parts, strict=True):
            encoder.backward(part)
