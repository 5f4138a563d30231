"""A trained policy in Python: one observation or a batch in, actions out; memory and frame stacks are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.rng import stream
from roboloop.core.types import Array, EnvSpec, PortablePolicy
from roboloop.sample.acting import Acting


class LoadedPolicy:
    """Acts for one environment, or for a batch of them side by side.

    Observations and actions are those of ``rl.make``. Call ``reset`` when an episode begins: a policy with memory, or
    one that sees several observations at once, would else remember the one before.
    """

    def __init__(self, policy: PortablePolicy, spec: EnvSpec, frame_stack: int = 1, seed: int = 0) -> None:
        self.policy, self.spec = policy, spec
        self._frames = frame_stack
        self._rng = stream(seed, "python-policy")
        self._acting: Acting | None = None
        self._begins: Array = np.zeros(0, bool)

    def reset(self, ended: Any = None) -> None:
        """Forget: everything, or of a batch those rows where ``ended`` is true."""
        if ended is None:
            self._acting = None
        elif self._acting is not None:
            self._begins |= np.asarray(ended, bool).reshape(len(self._begins))

    def act(self, obs: Any, explore: bool = False) -> Any:
        """Return the action for an observation, or actions for a batch ``[B, ...]``; greedy unless ``explore``."""
        rows, is_batch = self._rows(obs)
        if self._acting is None:
            self._acting = Acting(self.spec, len(rows), self._frames, self.policy)
            self._begins = np.ones(len(rows), bool)
        elif len(rows) != len(self._begins):
            raise ConfigError(f"{len(rows)} observations after {len(self._begins)}: call reset() in between")
        for row, begins in enumerate(self._begins):
            (self._acting.begin if begins else self._acting.stack.push)(row, rows[row])
        self._begins[:] = False
        return self._actions(np.array(self._acting.decide(explore, self._rng).action, np.float32), is_batch)

    def observe_reward(self, reward: Any) -> None:
        """Tell what the last actions brought; only policies that follow a target return, such as ``dt``, need it."""
        if self._acting is not None:
            self._acting.observe_reward(np.asarray(reward, np.float32).reshape(len(self._begins)))

    def _rows(self, obs: Any) -> tuple[Array, bool]:
        """Return observations as a batch in our form, and whether they were one."""
        spec = self.spec
        if spec.obs_dtype.names is None:
            rows: Array = np.asarray(obs).astype(spec.obs_dtype)
            shape = rows.shape
        else:
            if not isinstance(obs, Mapping) or set(obs) != set(spec.obs_dtype.names):
                raise ConfigError(f"an observation is a dict of {', '.join(spec.obs_dtype.names)}")
            first = spec.obs_dtype.names[0]
            shape = np.shape(obs[first])[: np.ndim(obs[first]) - len(spec.obs_dtype[first].shape)]
            rows = np.zeros(shape, spec.obs_dtype)
            for name in spec.obs_dtype.names:
                rows[name] = obs[name]
        if shape == spec.obs_shape:
            return rows[None], False
        if shape[1:] == spec.obs_shape and len(shape) == len(spec.obs_shape) + 1 and shape[0]:
            return rows, True
        raise ConfigError(f"an observation has shape {spec.obs_shape}, not {shape}")

    def _actions(self, action: Array, is_batch: bool) -> Any:
        from roboloop.envs.as_gymnasium import action_space
        from roboloop.envs.spaces import decoder

        if self.spec.is_continuous:
            return action if is_batch else action[0]
        decode = decoder(action_space(self.spec))
        decoded = [decode(row) for row in action]
        if not is_batch:
            return decoded[0]
        return decoded if isinstance(decoded[0], tuple) else np.asarray(decoded)
