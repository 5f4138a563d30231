"""Policies as the samplers and the robot see them: batched, numpy in and out, in the environment's own units."""

from __future__ import annotations

from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec
from roboloop.nets.observations import action_mask


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
