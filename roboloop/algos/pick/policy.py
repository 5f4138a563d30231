"""Who picks before anything is learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from roboloop.algos.pick.picks import PickLayout
from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.fields import PICKS
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec


class RandomPicks(WithoutWeights):
    """Any candidate, moved anywhere: for warm-up, since a place drawn evenly is mostly a miss."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec, self._dim = spec, PickLayout.of(spec).dim
        self._low, self._high = (np.asarray(b)[self._dim :] for b in (spec.action_low, spec.action_high))

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return one random pick and displacement per observation."""
        number = rng.integers(obs[PICKS].shape[1], size=len(obs))
        pick = obs[PICKS][np.arange(len(obs)), number]
        move = rng.uniform(self._low, self._high, (len(obs), len(self._low)))
        return Decision(np.concatenate((pick, move), axis=1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec)}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> RandomPicks:
        """Build the same policy anew."""
        return cls(spec_from_data(data["spec"]))
