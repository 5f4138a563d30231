"""Policies as the samplers and the robot see them: batched, numpy in and out, in the environment's own units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, State
from roboloop.nets.actors import PLAIN, ActorKind, ActorSpec, JointActor
from roboloop.nets.flat import Layout, Views, clone, restore, under
from roboloop.nets.grouped import places_by_group
from roboloop.nets.heads import LOG_STD_MAX, LOG_STD_MIN
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLPSpec, NetSpec
from roboloop.nets.normalize import FollowedNorm, Identity, Normalizer, normalizer_of
from roboloop.nets.observations import action_mask
from roboloop.nets.soft_modules import SoftModules, SoftSpec
from roboloop.nets.trunk import TrunkSpec
from roboloop.nets.vision import VisionEncoder, VisionSpec, conv_shapes


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
    if "trunk.linear0.weight" in weights:
        return TrunkSpec.of(weights)
    return SoftSpec.of(weights) if "task.weight" in weights else MLPSpec.of(weights)


def actor_of(weights: Views, kind: ActorKind, action_dim: int) -> ActorSpec:
    """Return the actor that weights belong to."""
    if not kind.in_turn:
        return ActorSpec(kind, action_dim, net_of(weights))
    return ActorSpec(kind, action_dim, net_of(under("pick", weights)), net_of(under("place", weights)))


def sight_of(data: Mapping[str, Any]) -> VisionSpec | None:
    """Return how a policy that was written down sees pictures; None where it sees none."""
    return VisionSpec.from_data(data["sight"]) if "sight" in data else None


def squashed(outputs: Array, explore: bool, rng: np.random.Generator) -> Array:
    """Return tanh of means, or exploring of draws, for a tanh-Gaussian's outputs ``[B, 2A]``."""
    action_dim = outputs.shape[1] // 2
    u = outputs[:, :action_dim]
    if explore:
        std = np.exp(bounded(outputs[:, action_dim:], LOG_STD_MIN, LOG_STD_MAX))
        u = u + std * rng.standard_normal(u.shape, dtype=np.float32)
    action: Array = np.tanh(u)
    return action


class ActorPolicy:
    """SAC's actor over weights that a trainer may go on changing; with ``sight`` it looks at pictures."""

    memory_size = 0

    def __init__(
        self,
        weights: Views,
        spec: EnvSpec,
        norm: Normalizer,
        sight: VisionSpec | None = None,
        kind: ActorKind = PLAIN,
    ) -> None:
        self.weights = weights
        self.norm = norm
        self.sight = VisionEncoder(sight, spec, weights) if sight else None
        self.version = 0
        self._spec = spec
        self._scale = ActionScale(spec)
        self._device = next(iter(weights.values())).device
        self._kind, self._actor_spec = kind, actor_of(weights, kind, spec.action_dim)
        self._net_spec = self._actor_spec.net
        self._layout = Layout({name: tuple(weight.shape) for name, weight in weights.items()})
        self._rows = self._net_spec.groups
        self._actor = self._actor_spec.build(weights, None, self._rows, Scratch(self._device))

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return actions ``[B, A]``; exploring draws them, else they are the likeliest: of a Gaussian, tanh(mean)."""
        if not self._kind.is_plain:
            return Decision(self._scale.to_env(self._drawn(obs, explore, rng)), memory)
        groups = self._net_spec.groups
        if self.sight is not None:
            out = self._forward(self._seen(self.sight, obs))
        else:
            flat = np.asarray(obs, dtype=np.float32).reshape(len(obs), -1)
            seen = self.norm(flat)
            out = self._outputs(seen) if groups == 1 else self._by_group(seen, flat[:, -groups:].argmax(1))
        return Decision(self._scale.to_env(squashed(out, explore, rng)), memory)

    @property
    def routing(self) -> list[Array]:
        """Who feeds whom among soft modules, for the rows last acted on; other networks have none."""
        net = self._actor.net if isinstance(self._actor, JointActor) else None
        return [p.cpu().numpy().copy() for p in net.routing] if isinstance(net, SoftModules) else []

    def _drawn(self, obs: Array, explore: bool, rng: np.random.Generator) -> Array:
        """Return actions of an actor that chooses or picks first, in [-1, 1]."""
        if self.sight is not None:
            seen = self._seen(self.sight, obs)
        else:
            flat = np.asarray(obs, dtype=np.float32).reshape(len(obs), -1)
            seen = torch.from_numpy(self.norm(flat)).to(self._device)
        self._size_for(len(seen))
        if not explore:
            return self._actor.likeliest(seen).cpu().numpy()
        noise = rng.standard_normal((len(seen), self._spec.action_dim), dtype=np.float32)
        return self._actor.draw(seen, torch.from_numpy(noise).to(self._device)).action.cpu().numpy()

    def _seen(self, sight: VisionEncoder, obs: Array) -> Tensor:
        """Return rows of the pictures' features and the scaled vector."""
        features, vector = sight.features(obs), self.norm(sight.vector(obs))
        return torch.cat((features, torch.from_numpy(vector).to(self._device)), 1) if vector.size else features

    def _outputs(self, seen: Array) -> Array:
        """Return the network's outputs; they are overwritten by the next call."""
        x = torch.from_numpy(seen)
        return self._forward(x if self._device.type == "cpu" else x.to(self._device))

    def _forward(self, x: Tensor) -> Array:
        self._size_for(len(x))
        assert isinstance(self._actor, JointActor)
        y = self._actor.net.forward(x)
        outputs: Array = (y if self._device.type == "cpu" else y.cpu()).numpy()
        return outputs

    def _size_for(self, rows: int) -> None:
        """Make networks for so many rows, unless they are there."""
        if rows != self._rows:
            self._actor, self._rows = self._actor_spec.build(self.weights, None, rows, Scratch(self._device)), rows

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
        return {"net": clone(self.weights), "norm": self.norm.state(), **self._about()}

    def _about(self) -> dict[str, Any]:
        """Return what its weights do not say, if there is anything."""
        sight = {"sight": self.sight.spec.to_data()} if self.sight else {}
        return sight | ({} if self._kind.is_plain else {"actor": self._kind.to_data()})

    @classmethod
    def from_state(cls, state: State, spec: EnvSpec) -> ActorPolicy:
        """Build a policy from the ``policy`` entry of a saved state and the environment's spec alone."""
        saved = {name: torch.as_tensor(value) for name, value in state["net"].items()}
        sight = sight_of(state)
        convs = conv_shapes(sight.convs) if sight else {}
        kind = ActorKind(**state.get("actor", {}))
        layout = Layout(actor_of(saved, kind, spec.action_dim).shapes() | convs)
        weights = layout.views(layout.zeros())
        restore(weights, saved, "policy")
        return cls(weights, spec, normalizer_of(state["norm"]), sight, kind)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        numbers = {"shapes": shapes, "norm_dim": len(self.norm.numbers) // 2}
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec), **numbers, **self._about()}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> ActorPolicy:
        """Build the same policy anew, with weights still to be read."""
        layout = Layout({name: tuple(shape) for name, shape in data["shapes"].items()})
        norm = FollowedNorm(data["norm_dim"]) if data["norm_dim"] else Identity()
        kind = ActorKind(**data.get("actor", {}))
        return cls(layout.views(layout.zeros()), spec_from_data(data["spec"]), norm, sight_of(data), kind)

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


class ActsThrough:
    """What a policy that decides around an actor takes from it: version and weights."""

    actor: ActorPolicy

    @property
    def version(self) -> int:
        """Which weights these are."""
        return self.actor.version

    @version.setter
    def version(self, version: int) -> None:
        self.actor.version = version

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        return self.actor.num_weights

    def write_weights(self, out: Array) -> None:
        """Write the actor's."""
        self.actor.write_weights(out)

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        self.actor.read_weights(flat, version)
