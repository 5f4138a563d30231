"""Settings of refinement: PPO that begins with another policy, in a simulator that may be wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from roboloop.algos.learner.config import check_split
from roboloop.algos.limits import above_zero, not_negative
from roboloop.algos.ppo.config import PPOConfig, ppo_of
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError


def _careful() -> PPOConfig:
    return PPOConfig(rollout_steps=1000, epochs=2, minibatches=8, lr=1.5e-4, lr_schedule="linear", clip=0.1)


@dataclass(frozen=True)
class RefineConfig:
    """PPO from a warm start, kept near it and where a simulator is to be trusted (docs/algorithms/dynamics.md)."""

    name: Literal["refine"] = "refine"
    """Which algorithm this section configures."""
    ppo: PPOConfig = field(default_factory=_careful)
    """What learns; hidden layers, activation and whether observations are scaled must be those of the start."""
    start: str = ""
    """Whose actor is refined: a run of PPO, or a file that roboloop export --frozen wrote."""
    start_checkpoint: str = "best"
    """Of a run: 'best', 'last' or a step."""
    start_std: float = math.exp(-1.3)
    """Deviation of actions at the start, where they reach from -1 to 1; also that of the policy to stay near to."""
    kl_coef: float = 0.0
    """What a step is charged for log pi - log pi_start of its action."""
    kl_limit: float | None = None
    """Divergence from the start, measured on each rollout, beyond which nothing is learned from it; none = no limit."""
    guard: str = ""
    """A run of dynamics whose discriminator says how much a step looks like the target; none = no guard."""
    guard_checkpoint: str = "last"
    """Of that run: 'best', 'last' or a step."""
    disc_coef: float = 0.1
    """With ``guard``: what a step is charged for each unit that its logit is below ``floor``."""
    floor: float = 0.0
    """With ``guard``: logit from which on a step is trusted; at 0 it looks like either."""

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.ppo.processes

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.ppo.check()
        above_zero(self, "start_std")
        not_negative(self, "kl_coef", "disc_coef")
        if not self.start:
            raise ConfigError("config key 'algo.start' is needed: a run of PPO, or what roboloop export --frozen wrote")
        if self.kl_limit is not None and not self.kl_limit > 0:
            raise ConfigError(f"config key 'algo.kl_limit' must be above 0 or none, not {self.kl_limit}")
        if self.ppo.shared_trunk or self.ppo.core != "none":
            raise ConfigError("refine begins with a fresh critic: leave algo.ppo.shared_trunk and core alone")


SPEC = AlgorithmSpec(
    "refine", RefineConfig, "rollouts", "roboloop.algos.simgan.refine_setup:make", "roboloop.algos.ppo.ppo:load_policy",
    frame_stack=False, rollout=ppo_of, check=check_split,
)  # fmt: skip
