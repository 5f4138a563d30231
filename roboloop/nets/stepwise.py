"""A perceptron that sees one step at a time, perhaps with heads for several tasks: what behaviour cloning learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from roboloop.core.types import Array
from roboloop.nets.flat import Views
from roboloop.nets.grouped import places_by_group
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLP, MLPSpec, Shapes, initialise
from roboloop.nets.windows import WindowInputs


@dataclass(frozen=True)
class StepwiseSpec:
    """All sizes of the perceptron."""

    mlp: MLPSpec
    num_features: int
    """Columns of a state that pictures fill: those whose gradient is wanted."""
    steps: int
    """Steps per window; each is a row of its own."""
    reads_task: bool = False
    """With several heads: whether the last columns of a state are its task as one-hot, shifted and scaled or not; else
    the first head acts."""

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        return self.mlp.shapes()

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill with torch's default."""
        initialise(weights, rng)

    def learner(self, weights: Views, grads: Views, windows: int) -> Stepwise:
        """Return the network that learns from so many windows at once."""
        return Stepwise(self, weights, grads, windows)

    def actor(self, weights: Views, return_norm: Tensor) -> StepwiseActor:
        """Return the network that acts; returns mean nothing to it."""
        return StepwiseActor(self, weights)


class Stepwise:
    """Outputs of every step by itself; returns, actions and times are not looked at."""

    def __init__(self, spec: StepwiseSpec, weights: Views, grads: Views, windows: int) -> None:
        device = weights["linear0.bias"].device
        self._mlp = MLP(spec.mlp, weights, grads, windows * spec.steps, Scratch(device))
        self._num_features = spec.num_features

    def forward(self, windows: WindowInputs, rng: np.random.Generator) -> Tensor:
        """Return outputs ``[rows, outputs]``; nothing is drawn."""
        return self._mlp.forward(windows.state)

    def backward(self, dy: Tensor) -> Tensor | None:
        """Write the gradient of every weight; return that of the columns that pictures fill."""
        dx = self._mlp.backward(dy, need_dx=self._num_features > 0)
        return None if dx is None else dx[:, : self._num_features]


class StepwiseActor:
    """The perceptron acting: it remembers nothing."""

    memory_size = 0

    def __init__(self, spec: StepwiseSpec, weights: Views) -> None:
        self._spec, self._weights = spec, weights
        self._rows = spec.mlp.groups
        self._net = self._build(self._rows)

    def _build(self, rows: int) -> MLP:
        return MLP(self._spec.mlp, self._weights, None, rows, Scratch(self._weights["linear0.bias"].device))

    def step(self, state: Tensor, memory: Array) -> tuple[Tensor, Array]:
        """Return the outputs of states ``[B, S]``, each by the head of its task."""
        groups = self._spec.mlp.groups
        if groups == 1:
            return self._outputs(state), memory
        group = state[:, -groups:].argmax(1).cpu().numpy() if self._spec.reads_task else np.zeros(len(state), np.int64)
        place, n = places_by_group(group, groups)
        ordered = state.new_zeros(groups * n, state.shape[1])
        ordered[place] = state
        return self._outputs(ordered)[place], memory

    def _outputs(self, state: Tensor) -> Tensor:
        if len(state) != self._rows:
            self._net, self._rows = self._build(len(state)), len(state)
        return self._net.forward(state)

    def note_action(self, memory: Array, action: Array) -> None:
        """Forget it."""

    def note_reward(self, memory: Array, reward: Array) -> Array:
        """Forget it."""
        return memory
