"""Policies as the samplers and the robot see them: batched, numpy in and out, in the environment's own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, State
from roboloop.nets.flat import Layout, Views, clone, restore
from roboloop.nets.grouped import places_by_group
from roboloop.nets.heads import LOG_STD_MAX, LOG_STD_MIN
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLPSpec, NetSpec
from roboloop.nets.normalize import FollowedNorm, Identity, Normalizer, normalizer_of
from roboloop.nets.observations import action_mask
from roboloop.nets.soft_modules import SoftModules, SoftSpec


class ActionScale:
    """Maps the networks' [-1, 1] to the environment's [low, high] and back; choices stay the numbers they are."""

    def __init__(self, spec: EnvSpec) -> None:
        low, high = (np.asarray(bound, dtype=np.float64) for bound in (spec.action_low, spec.action_high))
        is_choice = np.asarray(spec.action_choices or (0,) * spec.action_dim) > 0
        if not (is_choice | (np.isfinite(low) & np.isfinite(high) & (low < high))).all():
            raise ConfigError(
                f"action bounds must be finite with low below high, not {low.tolist()} to {high.tolist()}"
            )
        center, half = np.where(is_choice, 0.0, (high + low) / 2), np.where(is_choice, 1.0, (high - low) / 2)
        self.low, self.high = low.astype(np.float32), high.astype(np.float32)
        self.center, self.half = center.astype(np.float32), half.astype(np.float32)
        # most environments are in these units already, and a policy acts thousands of times a second
        self.is_identity = not center.any() and bool((half == 1.0).all())

    def to_env(self, unit: Array) -> Array:
        """Return actions in the environment's units, never outside its bounds."""
        return bounded(self.to_env_unbounded(unit), self.low, self.high)

    def to_env_unbounded(self, unit: Array) -> Array:
        """Return actions in the environment's units, outside its bounds where the unit action is."""
        return unit if self.is_identity else unit * self.half + self.center

    def to_unit(self, action: Array) -> Array:
        """Return actions in [-1, 1]."""
        return action if self.is_identity else (action - self.center) / self.half


def bounded(values: Array, low: Array | float, high: Array | float) -> Array:
    """Return np.clip, without the 5 us that its checks take."""
    inside: Array = np.minimum(np.maximum(values, low), high)
    return inside


def in_bounds(action: Array, spec: EnvSpec) -> Array:
    """Return actions as the environment took them: continuous ones clipped, choices as they are."""
    is_choice = np.asarray(spec.action_choices or (0,) * spec.action_dim) > 0
    low = np.where(is_choice, -np.inf, spec.action_low).astype(np.float32)
    high = np.where(is_choice, np.inf, spec.action_high).astype(np.float32)
    return bounded(action, low, high)


class UniformPolicy(WithoutWeights):
    """Actions drawn evenly between the bounds and among the allowed choices, for warm-up."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._low, self._high = np.asarray(spec.action_low), np.asarray(spec.action_high)
        self._choices = {column: n for column, n in enumerate(spec.action_choices) if n}

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return one uniform action per observation."""
        rows = len(obs)
        action = rng.uniform(self._low, self._high, (rows, len(self._low))).astype(np.float32)
        if self._choices:
            # among equal numbers of lots the largest wins; what is masked has none
            lots = rng.random((rows, sum(self._choices.values())))
            mask = action_mask(obs, rows)
            lots = lots if mask is None else np.where(mask, lots, -1.0)
            ends = np.cumsum([*self._choices.values()])[:-1]
            for column, part in zip(self._choices, np.split(lots, ends, axis=1), strict=True):
                action[:, column] = part.argmax(1)
        return Decision(action, memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec)}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> UniformPolicy:
        """Build the same policy anew."""
        return cls(spec_from_data(data["spec"]))


def net_of(weights: Views) -> NetSpec:
    """Return what kind of network an actor's weights belong to."""
    return SoftSpec.of(weights) if "task.weight" in weights else MLPSpec.of(weights)


class ActorPolicy:
    """The tanh-Gaussian actor over weights that a trainer may go on changing."""

    memory_size = 0

    def __init__(self, weights: Views, spec: EnvSpec, norm: Normalizer) -> None:
        self.weights = weights
        self.norm = norm
        self.version = 0
        self._spec = spec
        self._scale = ActionScale(spec)
        self._device = next(iter(weights.values())).device
        self._net_spec = net_of(weights)
        self._layout = Layout(self._net_spec.shapes())
        self._rows = self._net_spec.groups
        self._net = self._net_spec.build(weights, None, self._rows, Scratch(self._device))

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return actions ``[B, A]``; exploring draws from the Gaussian, else tanh(mean)."""
        flat = np.asarray(obs, dtype=np.float32).reshape(len(obs), -1)
        seen, groups = self.norm(flat), self._net_spec.groups
        out = self._outputs(seen) if groups == 1 else self._by_group(seen, flat[:, -groups:].argmax(1))
        action_dim = self._spec.action_dim
        u = out[:, :action_dim]
        if explore:
            std = np.exp(bounded(out[:, action_dim:], LOG_STD_MIN, LOG_STD_MAX))
            u = u + std * rng.standard_normal(u.shape, dtype=np.float32)
        return Decision(self._scale.to_env(np.tanh(u)), memory)

    @property
    def routing(self) -> list[Array]:
        """Who feeds whom among soft modules, for the rows last acted on; other networks have none."""
        return [p.cpu().numpy().copy() for p in self._net.routing] if isinstance(self._net, SoftModules) else []

    def _outputs(self, seen: Array) -> Array:
        """Return the network's outputs; they are overwritten by the next call."""
        rows = len(seen)
        if rows != self._rows:
            self._net, self._rows = self._net_spec.build(self.weights, None, rows, Scratch(self._device)), rows
        x, on_cpu = torch.from_numpy(seen), self._device.type == "cpu"
        y = self._net.forward(x if on_cpu else x.to(self._device))
        outputs: Array = (y if on_cpu else y.cpu()).numpy()
        return outputs

    def _by_group(self, seen: Array, group: Array) -> Array:
        """Return the outputs of rows of any order, by the head of each one's group."""
        place, n = places_by_group(group, self._net_spec.groups)
        ordered = np.zeros((self._net_spec.groups * n, seen.shape[1]), np.float32)
        ordered[place] = seen
        return self._outputs(ordered)[place]

    def snapshot(self) -> ActorPolicy:
        """Return a policy that no later update changes."""
        policy = self.from_state(self.state(), self._spec)
        policy.version = self.version
        return policy

    def state(self) -> State:
        """Return network and normaliser, as copies: all that acting needs."""
        return {"net": clone(self.weights), "norm": self.norm.state()}

    @classmethod
    def from_state(cls, state: State, spec: EnvSpec) -> ActorPolicy:
        """Build a policy from the ``policy`` entry of a saved state and the environment's spec alone."""
        saved = {name: torch.as_tensor(value) for name, value in state["net"].items()}
        layout = Layout(net_of(saved).shapes())
        weights = layout.views(layout.zeros())
        restore(weights, saved, "policy")
        return cls(weights, spec, normalizer_of(state["norm"]))

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        norm_dim = len(self.norm.numbers) // 2
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec), "shapes": shapes, "norm_dim": norm_dim}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> ActorPolicy:
        """Build the same policy anew, with weights still to be read."""
        layout = Layout({name: tuple(shape) for name, shape in data["shapes"].items()})
        norm = FollowedNorm(data["norm_dim"]) if data["norm_dim"] else Identity()
        return cls(layout.views(layout.zeros()), spec_from_data(data["spec"]), norm)

    @property
    def num_weights(self) -> int:
        """Length of the flat weights: the network, then the normaliser."""
        return self._layout.size + len(self.norm.numbers)

    def write_weights(self, out: Array) -> None:
        """Write network and normaliser."""
        for name, view in self._layout.views(torch.from_numpy(out)).items():
            view.copy_(self.weights[name])
        out[self._layout.size :] = self.norm.numbers

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        for name, view in self._layout.views(torch.from_numpy(flat)).items():
            self.weights[name].copy_(view)
        self.norm.numbers[:] = flat[self._layout.size :]
        self.version = version
