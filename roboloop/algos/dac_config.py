"""Settings of discriminator-actor-critic: those of its parts, and how they are mixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roboloop.algos.config import SACConfig, within_one
from roboloop.algos.discriminator_config import DiscriminatorConfig
from roboloop.core.errors import ConfigError
from roboloop.data.config import ExpertConfig


@dataclass(frozen=True)
class DACConfig:
    """Soft actor-critic on a discriminator's rewards (arXiv:1809.02925); the environment's own are not looked at."""

    name: Literal["dac"] = "dac"
    """Which algorithm this section configures."""
    sac: SACConfig = field(default_factory=SACConfig)
    """What learns from the rewards."""
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """What pays them."""
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    """What is to be imitated."""
    expert_fraction: float = 0.1
    """Share of an expert's transitions in the batches that actor and critics learn from, at the start."""
    expert_decay: float = 0.99999
    """Factor of that share per update."""

    @property
    def batch_size(self) -> int:
        """Transitions per update."""
        return self.sac.batch_size

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.sac.processes

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.sac.check()
        self.discriminator.check()
        self.expert.check()
        within_one(self, "expert_fraction", "expert_decay")
        if self.sac.n_step != 1:
            raise ConfigError(
                f"dac pays single steps when they are drawn: leave algo.sac.n_step at 1, not {self.sac.n_step}"
            )
        if not 0 < self.sac.gamma < 1:
            raise ConfigError(
                f"dac needs algo.sac.gamma between 0 and 1, not {self.sac.gamma}: an end is paid for ever"
            )
