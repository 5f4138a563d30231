"""How experience is collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class SampleConfig:
    """Who steps the environments; ``groups`` is part of the maths, ``workers`` only of the resources."""

    groups: int = 1
    """Parts of the environments that one policy call serves, each with its own random stream."""
    workers: int = 0
    """Processes that step the groups; 0 = this one. In lock step it never changes a bit of the result."""
    free_running: bool = False
    """Workers collect while the learner learns, on weights that lag a little; exact in its counts only."""
    inference: Literal["workers", "central"] = "workers"
    """Where the policy acts: beside the environments, or here for a whole group at once, with every environment in a
    process of its own; central is for policies on a GPU, and ``workers`` is then not used."""
    steps: int = 1
    """Steps of every environment per rollout; on-policy algorithms use their own rollout_steps."""
    queue: int = 2
    """Rollouts that a free-running group may be ahead of the learner."""
    restarts: int = 3
    """Dead or hung workers, and broken environments, that are replaced before the run gives up."""
    hang_s: float = 120.0
    """A worker whose simulator takes longer than this for one step or reset is taken for hung."""
    worker_memory_mb: int = 0
    """A worker that holds more is replaced between two rollouts, without loss; 0 = no limit."""

    def check(self, num_envs: int) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        for name in ("groups", "steps", "queue"):
            if getattr(self, name) < 1:
                raise ConfigError(f"config key 'sample.{name}' must be at least 1, not {getattr(self, name)}")
        for name in ("workers", "restarts", "worker_memory_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"config key 'sample.{name}' must not be negative: {getattr(self, name)}")
        if self.hang_s <= 0:
            raise ConfigError(f"config key 'sample.hang_s' must be above 0, not {self.hang_s}")
        if num_envs % self.groups:
            raise ConfigError(f"env.num_envs {num_envs} does not split into sample.groups {self.groups} equal groups")
        if self.workers and self.groups % self.workers:
            raise ConfigError(f"sample.groups {self.groups} do not split evenly over sample.workers {self.workers}")
        if self.inference == "central" and self.workers:
            raise ConfigError(
                "sample.inference 'central' gives every environment its own process: leave sample.workers at 0"
            )
        if self.free_running and not self.workers:
            raise ConfigError("sample.free_running needs sample.workers: at least 1")
