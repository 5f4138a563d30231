"""Networks that say both what to do and what it is worth: from observations to parameters of actions and a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.conv import ConvEncoder, ConvSpec
from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.layers import Linear, Scratch, as_in_out, weight_shape
from roboloop.nets.mlp import MLP, MLPSpec, Shapes
from roboloop.nets.orthogonal import HIDDEN_GAINS, POLICY_GAIN, VALUE_GAIN, fill_layers, fill_orthogonal
from roboloop.nets.recurrent import CORES, Core, core_shapes, initialise_core


class Inputs(NamedTuple):
    """Observations as the networks take them, one row each."""

    vector: Tensor  # [rows, vector_dim], normalised
    pictures: tuple[Tensor, ...]  # [rows, block_bytes] uint8


class Window(NamedTuple):
    """How rows lie in time: row ``t * columns + column``."""

    steps: int
    columns: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.steps * self.columns


class LogStd(NamedTuple):
    """Log deviations of continuous actions: a bias, and the weights by which they depend on the state, if they do."""

    weights: list[Tensor]
    bias: Tensor


@dataclass(frozen=True)
class ActorCriticSpec:
    """All sizes of an actor-critic."""

    vector_dim: int
    convs: tuple[ConvSpec, ...]
    hidden: tuple[int, ...]
    activation: str
    core: str
    core_size: int
    shared_trunk: bool
    num_logits: int
    num_continuous: int
    state_dependent_std: bool
    initial_std: float

    @property
    def num_outputs(self) -> int:
        """Parameters of the actions that the network computes; the others are the same in all states."""
        return self.num_logits + self.num_continuous * (2 if self.state_dependent_std else 1)

    @property
    def is_shared(self) -> bool:
        """Whether policy and value share all but their last layer."""
        return self.shared_trunk or bool(self.convs) or self.core != "none"

    @property
    def memory_size(self) -> int:
        """Floats of memory per environment."""
        return {"none": 0, "gru": 1, "lstm": 2}[self.core] * self.core_size

    @property
    def vector_spec(self) -> MLPSpec:
        """The layers that read the vector, where policy and value share them."""
        return MLPSpec((self.vector_dim, *self.hidden), activation=self.activation, activate_last=True)

    @property
    def num_encoded(self) -> int:
        """Numbers that leave the encoders."""
        return sum(conv.features for conv in self.convs) + (self.hidden[-1] if self.vector_dim else 0)

    @property
    def num_features(self) -> int:
        """Numbers that the last layer of a shared network reads."""
        return self.num_encoded if self.core == "none" else self.core_size

    def separate_spec(self, outputs: int) -> MLPSpec:
        """Return one of two networks that share nothing."""
        return MLPSpec((self.vector_dim, *self.hidden, outputs), activation=self.activation)

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        shapes: Shapes = {}
        if self.num_continuous and not self.state_dependent_std:
            shapes["log_std"] = (self.num_continuous,)
        if not self.is_shared:
            shapes |= prefixed("actor", self.separate_spec(self.num_outputs).shapes())
            return shapes | prefixed("critic", self.separate_spec(1).shapes())
        for i, conv in enumerate(self.convs):
            shapes |= prefixed(f"picture{i}", conv.shapes())
        if self.vector_dim:
            shapes |= prefixed("vector", self.vector_spec.shapes())
        if self.core != "none":
            shapes |= prefixed("core", core_shapes(self.num_encoded, self.core_size, CORES[self.core].GATES))
        shapes["head.weight"] = weight_shape(self.num_features, self.num_outputs + 1)
        shapes["head.bias"] = (self.num_outputs + 1,)
        return shapes

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill with orthogonal weights: a policy that hardly depends on the state, and the wanted deviation."""
        hidden = [HIDDEN_GAINS[self.activation]] * len(self.hidden)
        if not self.is_shared:
            fill_layers(under("actor", weights), [*hidden, POLICY_GAIN], rng)
            fill_layers(under("critic", weights), [*hidden, VALUE_GAIN], rng)
        else:
            for i, conv in enumerate(self.convs):
                conv.initialise(under(f"picture{i}", weights), rng)
            if self.vector_dim:
                fill_layers(under("vector", weights), hidden, rng)
            if self.core != "none":
                initialise_core(under("core", weights), self.core_size, rng)
            bias = weights["head.bias"].zero_()
            head = as_in_out(weights["head.weight"], bias)
            fill_orthogonal(head[:, :-1], POLICY_GAIN, rng)
            fill_orthogonal(head[:, -1:], VALUE_GAIN, rng)
        if self.num_continuous:
            self.log_std_of(weights).bias.fill_(math.log(self.initial_std))

    def log_std_of(self, weights: Views) -> LogStd:
        """Return what says the log deviations of continuous actions."""
        if not self.state_dependent_std:
            return LogStd([], weights["log_std"])
        name = "head" if self.is_shared else f"actor.linear{len(self.hidden)}"
        columns = slice(self.num_logits + self.num_continuous, self.num_outputs)
        bias = weights[f"{name}.bias"]
        return LogStd([as_in_out(weights[f"{name}.weight"], bias)[:, columns]], bias[columns])

    def value_layer(self, weights: Views) -> tuple[Tensor, Tensor]:
        """Return weights ``[in]`` and bias ``[1]`` of the value, a linear function of the last hidden layer."""
        name = "head" if self.is_shared else f"critic.linear{len(self.hidden)}"
        bias = weights[f"{name}.bias"]
        return as_in_out(weights[f"{name}.weight"], bias)[:, -1], bias[-1:]

    def build(self, weights: Views, grads: Views | None, pixel_norms: list[Tensor], window: Window) -> ActorCritic:
        """Return the network for a fixed number of rows; ``grads=None`` freezes the weights."""
        if self.is_shared:
            return SharedNet(self, weights, grads, pixel_norms, window)
        return SeparateNets(self, weights, grads, window)


class ActorCritic(Protocol):
    """``forward`` keeps what ``backward`` needs; acting is a window of one step."""

    memory: Tensor
    """``[columns, memory_size]`` after the last forward pass; the next one may overwrite it."""

    def forward(self, inputs: Inputs, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters ``[rows, P]`` and values ``[rows]``; ``starts [steps, columns]`` clear the memory first."""
        ...

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write the gradient of every weight; the gradients may cover only the first steps."""
        ...


class SeparateNets:
    """Two perceptrons over the vector that share nothing."""

    def __init__(self, spec: ActorCriticSpec, weights: Views, grads: Views | None, window: Window) -> None:
        scratch = Scratch(weights["actor.linear0.weight"].device)
        self._actor, self._critic = (
            MLP(
                spec.separate_spec(n),
                under(net, weights),
                under(net, grads) if grads else None,
                window.rows,
                scratch,
                net,
            )
            for net, n in (("actor", spec.num_outputs), ("critic", 1))
        )
        self._deviation = Deviation(spec, weights, grads)

    def forward(self, inputs: Inputs, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters and values."""
        self.memory = memory
        params = self._deviation.append(self._actor.forward(inputs.vector))
        return params, self._critic.forward(inputs.vector).view(-1)

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write the gradient of every weight."""
        self._actor.backward(self._deviation.split_off(d_params))
        self._critic.backward(d_value.view(-1, 1))


class SharedNet:
    """Encoders of pictures and vector, a recurrent core where wanted, and one last layer for parameters and value."""

    def __init__(
        self, spec: ActorCriticSpec, weights: Views, grads: Views | None, pixel_norms: list[Tensor], window: Window
    ) -> None:
        def part(name: str) -> tuple[Views, Views | None]:
            return under(name, weights), under(name, grads) if grads else None

        rows, device = window.rows, weights["head.bias"].device
        scratch = Scratch(device)
        self._encoders = [
            ConvEncoder(conv, *part(f"picture{i}"), pixel_norms[i], rows) for i, conv in enumerate(spec.convs)
        ]
        self._vector = MLP(spec.vector_spec, *part("vector"), rows, scratch, "vector") if spec.vector_dim else None
        self._core: Core | None = CORES[spec.core](*part("core"), *window) if spec.core != "none" else None
        y = scratch.take("head.y", rows, spec.num_outputs + 1)
        self._head = Linear(*part("head"), y, scratch, "head.dx")
        self._widths = [conv.features for conv in spec.convs] + ([spec.hidden[-1]] if spec.vector_dim else [])
        self._deviation = Deviation(spec, weights, grads)

    def forward(self, inputs: Inputs, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters and values."""
        features = [encoder.forward(x) for encoder, x in zip(self._encoders, inputs.pictures, strict=True)]
        if self._vector is not None:
            features.append(self._vector.forward(inputs.vector))
        x = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        self.memory = memory
        if self._core is not None:
            x = self._core.forward(x, memory, starts)
            self.memory = self._core.memory
        y = self._head.forward(x)
        return self._deviation.append(y[:, :-1]), y[:, -1]

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write the gradient of every weight."""
        dy = torch.cat((self._deviation.split_off(d_params), d_value.view(-1, 1)), dim=1)
        dx = self._head.backward(dy, need_dx=True)
        assert dx is not None
        if self._core is not None:
            dx = self._core.backward(dx)
        # activations go back in place: every encoder needs rows of its own
        parts = [dx] if len(self._widths) == 1 else [part.contiguous() for part in torch.split(dx, self._widths, dim=1)]
        for encoder, part in zip(self._encoders, parts, strict=False):
            encoder.backward(part)
        if self._vector is not None:
            self._vector.backward(parts[-1])


class Deviation:
    """The log deviations of continuous actions where they do not depend on the state."""

    def __init__(self, spec: ActorCriticSpec, weights: Views, grads: Views | None) -> None:
        self._log_std = weights.get("log_std")
        self._grad = grads.get("log_std") if grads else None
        self._num_outputs = spec.num_outputs

    def append(self, outputs: Tensor) -> Tensor:
        """Return whole rows of parameters."""
        if self._log_std is None:
            return outputs
        return torch.cat((outputs, self._log_std.expand(len(outputs), -1)), dim=1)

    def split_off(self, d_params: Tensor) -> Tensor:
        """Write the gradient of the deviations; return that of the network's outputs."""
        if self._grad is None:
            return d_params
        torch.sum(d_params[:, self._num_outputs :], 0, out=self._grad)
        return d_params[:, : self._num_outputs].contiguous()
