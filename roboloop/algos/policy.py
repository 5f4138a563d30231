"""Policies as the samplers and the robot see them: batched, numpy in and out, in the environment's own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.flat import Layout, Views, clone
from roboloop.nets.heads import LOG_STD_MAX, LOG_STD_MIN
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLP, MLPSpec
from roboloop.nets.normalize import Normalizer, normalizer_of


class ActionScale:
    """Maps the networks' [-1, 1] to the environment's [low, high] and back."""

    def __init__(self, spec: EnvSpec) -> None:
        low, high = (np.asarray(bound, dtype=np.float64) for bound in (spec.action_low, spec.action_high))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ConfigError(
                f"action bounds must be finite with low below high, not {low.tolist()} to {high.tolist()}"
            )
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        self._center, self._half = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    def to_env(self, unit: Array) -> Array:
        """Return actions in the environment's units, never outside its bounds."""
        return bounded(unit * self._half + self._center, self._low, self._high)

    def to_unit(self, action: Array) -> Array:
        """Return actions in [-1, 1]."""
        return (action - self._center) / self._half


def bounded(values: Array, low: Array | float, high: Array | float) -> Array:
    """Return np.clip, without the 5 us that its checks take."""
    inside: Array = np.minimum(np.maximum(values, low), high)
    return inside


class UniformPolicy:
    """Actions drawn evenly between the bounds, for warm-up."""

    def __init__(self, spec: EnvSpec) -> None:
        self._low, self._high = np.asarray(spec.action_low), np.asarray(spec.action_high)

    def act(self, obs: Array, explore: bool, rng: np.random.Generator) -> Array:
        """Return one uniform action per observation."""
        return rng.uniform(self._low, self._high, (len(obs), len(self._low))).astype(np.float32)


class ActorPolicy:
    """The tanh-Gaussian actor over weights that a trainer may go on changing."""

    def __init__(self, weights: Views, spec: EnvSpec, norm: Normalizer) -> None:
        self.weights = weights
        self.norm = norm
        self._spec = spec
        self._scale = ActionScale(spec)
        self._device = weights["linear0.weight"].device
        self._net_spec = MLPSpec.of(weights)
        self._net, self._rows = MLP(self._net_spec, weights, None, rows=1, scratch=Scratch(self._device)), 1

    def act(self, obs: Array, explore: bool, rng: np.random.Generator) -> Array:
        """Return actions ``[B, A]``; exploring draws from the Gaussian, else tanh(mean)."""
        rows = len(obs)
        if rows != self._rows:
            self._net, self._rows = MLP(self._net_spec, self.weights, None, rows, Scratch(self._device)), rows
        x = torch.from_numpy(self.norm(np.asarray(obs, dtype=np.float32).reshape(rows, -1)))
        on_cpu = self._device.type == "cpu"
        y = self._net.forward(x if on_cpu else x.to(self._device))
        out: Array = (y if on_cpu else y.cpu()).numpy()
        action_dim = self._spec.action_dim
        u = out[:, :action_dim]
        if explore:
            std = np.exp(bounded(out[:, action_dim:], LOG_STD_MIN, LOG_STD_MAX))
            u = u + std * rng.standard_normal(u.shape, dtype=np.float32)
        return self._scale.to_env(np.tanh(u))

    def snapshot(self) -> ActorPolicy:
        """Return a policy that no later update changes."""
        return policy_from_state(self.state(), self._spec)

    def state(self) -> State:
        """Return network and normaliser, as copies: all that acting needs."""
        return {"net": clone(self.weights), "norm": self.norm.state()}


def policy_from_state(state: State, spec: EnvSpec) -> ActorPolicy:
    """Build a policy from the ``policy`` entry of a saved state and the environment's spec alone."""
    tensors = {name: _tensor(value) for name, value in state["net"].items()}
    layout = Layout(MLPSpec.of(tensors).shapes())
    weights = layout.views(layout.zeros())
    for name, view in weights.items():
        view.copy_(tensors[name])
    return ActorPolicy(weights, spec, normalizer_of(state["norm"]))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
