"""The arrays of a rollout: allocated in this process, or laid out in memory that workers share."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from roboloop.core.memory import ByteLayout, Columns
from roboloop.core.types import Array, EnvSpec, Rollout
from roboloop.data.rollouts import rollout_over

POISON = 0x7B
"""Fills memory that nobody has written yet: floats become 1e36, so that a use before the write is seen."""


@dataclass(frozen=True)
class RolloutShape:
    """What fixes the arrays of a rollout."""

    spec: EnvSpec
    steps: int
    num_envs: int
    frame_stack: int = 1
    stacked: bool = False
    """Whether observations are kept as the policy saw them, with their history; replay rebuilds it by index instead."""
    memory_size: int = 0

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of one stored observation."""
        history = (self.frame_stack,) if self.stacked and self.frame_stack > 1 else ()
        return (*history, *self.spec.obs_shape)

    def to_data(self) -> dict[str, int]:
        """Return all but the spec, which whoever makes the environment knows."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spec"}

    def columns(self) -> Columns:
        """Return name, shape and dtype of every array."""
        steps, envs = self.steps, self.num_envs
        one, flag = np.dtype(np.float32), np.dtype(bool)
        return {
            "obs": ((steps + 1, envs, *self.obs_shape), np.dtype(self.spec.obs_dtype)),
            "action": ((steps, envs, self.spec.action_dim), one),
            "reward": ((steps, envs), one),
            "raw_reward": ((steps, envs), one),
            "terminated": ((steps, envs), flag),
            "truncated": ((steps, envs), flag),
            "log_prob": ((steps, envs), one),
            "value": ((steps + 1, envs), one),
            "memory": ((envs, self.memory_size), one),
            "version": ((envs,), np.dtype(np.int64)),
        }

    def layout(self) -> ByteLayout:
        """Return where the arrays lie in shared memory."""
        return ByteLayout(self.columns())

    def allocate(self) -> Rollout:
        """Return arrays of this process."""
        return rollout_over({name: np.zeros(shape, dtype) for name, (shape, dtype) in self.columns().items()})


def poison(arrays: dict[str, Array]) -> None:
    """Fill arrays with a pattern that no result can survive unnoticed."""
    for array in arrays.values():
        array.view(np.uint8)[...] = POISON
