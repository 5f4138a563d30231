"""A forced schedule: one policy after another within each episode, by its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, build_policy, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Decision, PortablePolicy


class PolicySequence(WithoutWeights):
    """Policies without weights or memory of their own; the last one acts until the episode ends."""

    memory_size = 1  # steps of the episode so far

    def __init__(self, policies: Sequence[PortablePolicy], steps: Sequence[int]) -> None:
        if len(steps) != len(policies) - 1 or (len(steps) and min(steps) < 1):
            raise ConfigError(f"a schedule of {len(policies)} parts needs steps for all but the last, not {steps}")
        if any(policy.num_weights or policy.memory_size for policy in policies):
            raise ConfigError("a forced schedule is for policies that were written, not learned")
        self._policies, self._steps = list(policies), list(steps)
        self._ends = np.cumsum(self._steps)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Let each row's policy of the moment decide."""
        turn = np.searchsorted(self._ends, memory[:, 0], side="right")
        action: Array | None = None
        for i in np.unique(turn).tolist():
            rows = turn == i
            decided = self._policies[i].act(obs[rows], np.zeros((rows.sum(), 0), np.float32), explore, rng).action
            action = np.zeros((len(obs), decided.shape[1]), np.float32) if action is None else action
            action[rows] = decided
        assert action is not None, "there is nothing to decide"
        return Decision(action, memory + np.float32(1))

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        policies = [policy.blueprint() for policy in self._policies]
        return {"kind": kind_of(self), "policies": policies, "steps": self._steps}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PolicySequence:
        """Build the same policy anew."""
        return cls([build_policy(policy) for policy in data["policies"]], data["steps"])
