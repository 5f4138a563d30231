"""How a policy behaves where data are recorded, whatever kind of policy it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roboloop.algos.policy import ActionScale, UniformPolicy, bounded
from roboloop.core.blueprint import build_policy, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, PortablePolicy, RewardAware


class Behaviour:
    """A policy that takes its likeliest actions, or explores as in training; noise comes on top of either.

    Noise is Gaussian in the [-1, 1] of the action bounds, and what leaves them is clipped; for a choice it is the
    probability that it is drawn evenly among those allowed. The action with its noise is the one that is sent and
    stored. How likely that was is then not known, and a policy with memory remembers what it had meant to do.
    """

    def __init__(self, policy: PortablePolicy, spec: EnvSpec, explore: bool = False, noise: float = 0.0) -> None:
        if not 0 <= noise < math.inf or (noise > 1 and not spec.is_continuous):
            most = "" if spec.is_continuous else " and at most 1, the probability of another choice"
            raise ConfigError(f"noise must not be negative{most}: {noise:g}")
        self.memory_size = policy.memory_size
        self._policy, self._spec = policy, spec
        self._explore, self._noise = explore, noise
        self._is_choice = np.asarray(spec.action_choices or (0,) * spec.action_dim) > 0
        self._scale, self._uniform = ActionScale(spec), UniformPolicy(spec)

    @property
    def version(self) -> int:
        """Which weights these are."""
        return self._policy.version

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide; a sampler that does not ask to explore wants to know the value only."""
        decision = self._policy.act(obs, memory, explore and self._explore, rng)
        if not explore or not self._noise:
            return decision
        return decision._replace(action=self._disturbed(obs, decision.action, rng), log_prob=None)

    def _disturbed(self, obs: Array, action: Array, rng: np.random.Generator) -> Array:
        normal = rng.standard_normal(action.shape, dtype=np.float32)
        moved = self._scale.to_env(bounded(self._scale.to_unit(action), -1.0, 1.0) + self._noise * normal)
        is_other = rng.random(action.shape) < self._noise
        drawn = self._uniform.act(obs, np.zeros((len(obs), 0), np.float32), True, rng).action
        chosen = np.where(is_other, drawn, action)
        return np.where(self._is_choice, chosen, moved).astype(np.float32)

    def observe_reward(self, memory: Array, reward: Array) -> Array:
        """Tell the policy, where it wants to know, what its last actions brought."""
        return self._policy.observe_reward(memory, reward) if isinstance(self._policy, RewardAware) else memory

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        about = {"spec": spec_to_data(self._spec), "explore": self._explore, "noise": self._noise}
        return {"kind": kind_of(self), "policy": self._policy.blueprint(), **about}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> Behaviour:
        """Build the same behaviour anew, with weights still to be read."""
        return cls(build_policy(data["policy"]), spec_from_data(data["spec"]), data["explore"], data["noise"])

    @property
    def num_weights(self) -> int:
        """Length of the policy's flat weights."""
        return self._policy.num_weights

    def write_weights(self, out: Array) -> None:
        """Write the policy's weights."""
        self._policy.write_weights(out)

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        self._policy.read_weights(flat, version)
