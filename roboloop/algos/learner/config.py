"""Settings that every learner has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roboloop.algos.limits import above_zero, at_least_one, at_most, not_negative, within_one
from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class LearnerConfig:
    """What every learner that draws batches from a replay needs; a subclass adds ``name`` and its own."""

    gamma: float = 0.99
    """Discount per environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    batch_size: int = 256
    """Transitions per update."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """'linear': step sizes fall to zero over training."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "batch_size", "n_step", "shards", "processes")
        at_most(self, batch_size=10**7, n_step=10_000, shards=1_000, processes=1_000)
        within_one(self, "gamma")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")


@dataclass(frozen=True)
class DatasetConfig:
    """What every learner that draws windows from a dataset needs; a subclass adds ``name`` and its own."""

    context: int = 1
    """Steps per window."""
    batch_size: int = 256
    """Windows per update."""
    lr: float = 3e-4
    """AdamW step size after the warm-up."""
    weight_decay: float = 1e-4
    """AdamW pull of every weight towards zero, in step sizes."""
    warmup_updates: int = 0
    """Updates over which the step size grows linearly from zero."""
    max_grad_norm: float = 0.0
    """Longest gradient; 0 is not limited."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "context", "batch_size", "shards", "processes")
        at_most(self, context=10**6, batch_size=10**7, shards=1_000, processes=1_000)
        above_zero(self, "lr")
        not_negative(self, "weight_decay", "warmup_updates", "max_grad_norm")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")
