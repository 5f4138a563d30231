"""How experience is collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError
from roboloop.core.parts import split_evenly


@dataclass(frozen=True)
class SampleConfig:
    """Who steps the environments; ``groups`` is part of the maths, ``workers`` only of the resources."""

    groups: int = 1
    """Parts of the environments that one policy call serves, each with its own random stream; sizes differ by one where
    ``env.num_envs`` is no multiple."""
    workers: int = field(default=0, metadata=RESOURCE)
    """Processes that step the groups; 0 = this one. In lock step it never changes a bit of the result."""
    on: Literal["processes", "ray"] = field(default="processes", metadata=RESOURCE)
    """Where the workers live: processes of this machine, or actors of a Ray cluster (extra: ray)."""
    address: str = field(default="", metadata=RESOURCE)
    """Of the Ray cluster, ray://HOST:PORT; empty = $RAY_ADDRESS, or a cluster of this machine alone."""
    worker_cpus: float = field(default=1.0, metadata=RESOURCE)
    """CPUs of the cluster that a worker on Ray takes."""
    publish_every_s: float = field(default=0.0, metadata=RESOURCE)
    """Free-running workers on Ray get new weights at most this often; 0 = with every order, where there are any."""
    free_running: bool = False
    """Workers collect while the learner learns, on weights that lag a little; exact in its counts only."""
    inference: Literal["workers", "central"] = "workers"
    """Where the policy acts: beside the environments, or here for a whole group at once, with every environment in a
    process of its own; central is for policies on a GPU, and ``workers`` is then not used."""
    steps: int = 1
    """Steps of every environment per rollout; on-policy algorithms use their own rollout_steps."""
    queue: int = 2
    """Rollouts that a free-running group may be ahead of the learner."""
    restarts: int = field(default=3, metadata=RESOURCE)
    """Dead or hung workers, and broken environments, that are replaced before the run gives up."""
    hang_s: float = field(default=120.0, metadata=RESOURCE)
    """A worker whose simulator takes longer than this for one step or reset is taken for hung."""
    real_time: Literal["off", "process", "inline"] = "off"
    """A robot is led at its own rate by a process of its own ('process'), or by this one, which learns in the slack of
    the ticks or between episodes ('inline'; see ``update.at``)."""
    max_misses: int = field(default=3, metadata=RESOURCE)
    """Deadlines in a row that a real-time loop may miss, going on with the last action, before the robot holds."""
    learner_hang_s: float = field(default=0.5, metadata=RESOURCE)
    """A robot in real time holds when its learner's process gives no sign of life for so long."""
    worker_memory_mb: int = field(default=0, metadata=RESOURCE)
    """A worker that holds more is replaced between two rollouts, without loss; 0 = no limit."""

    def check(self, num_envs: int) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        for name in ("groups", "steps", "queue"):
            if getattr(self, name) < 1:
                raise ConfigError(f"config key 'sample.{name}' must be at least 1, not {getattr(self, name)}")
        for name in ("workers", "restarts", "worker_memory_mb", "max_misses", "publish_every_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"config key 'sample.{name}' must not be negative: {getattr(self, name)}")
        for name in ("hang_s", "learner_hang_s", "worker_cpus"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"config key 'sample.{name}' must be above 0, not {getattr(self, name)}")
        if self.real_time != "off":
            self._check_real_time(num_envs)
        for name, number, of, most in (
            ("sample.groups", self.groups, "env.num_envs", num_envs),
            ("sample.workers", self.workers, "sample.groups", self.groups),
        ):
            if number > most:
                raise ConfigError(f"{name} {number} is more than {of} {most}: each needs one at least")
        if self.inference == "central" and self.workers:
            raise ConfigError(
                "sample.inference 'central' gives every environment its own process: leave sample.workers at 0"
            )
        if self.free_running and not self.workers:
            raise ConfigError("sample.free_running needs sample.workers: at least 1")
        self._check_most()
        self._check_ray()

    def rollout_envs(self, num_envs: int) -> set[int]:
        """Return how many environments the rollouts have; groups that run free deliver each its own."""
        return {len(part) for part in split_evenly(num_envs, self.groups)} if self.free_running else {num_envs}

    def _check_most(self) -> None:
        for name, most in (("steps", 10**6), ("queue", 10_000), ("workers", 10_000)):
            if getattr(self, name) > most:
                raise ConfigError(f"config key 'sample.{name}' must be at most {most}, not {getattr(self, name)}")

    def _check_ray(self) -> None:
        if self.on == "ray" and not self.workers:
            raise ConfigError("sample.on 'ray' needs sample.workers: at least 1")
        if self.on == "ray" and self.worker_memory_mb:
            raise ConfigError("sample.worker_memory_mb is for workers of this machine, not for sample.on 'ray'")
        for name, is_set in (("address", self.address), ("publish_every_s", self.publish_every_s)):
            if is_set and self.on != "ray":
                raise ConfigError(f"sample.{name} is for workers in a cluster: set sample.on to ray")

    def _check_real_time(self, num_envs: int) -> None:
        alone = {"env.num_envs": num_envs, "sample.groups": self.groups, "sample.steps": self.steps}
        for name, value in alone.items():
            if value != 1:
                raise ConfigError(f"sample.real_time leads one robot step by step: leave {name} at 1, not {value}")
        if self.workers or self.inference == "central":
            raise ConfigError("sample.real_time has its own process: leave sample.workers and inference alone")
