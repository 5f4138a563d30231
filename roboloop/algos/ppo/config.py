"""Settings of proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roboloop.algos.learner.config import RolloutConfig, check_split
from roboloop.algos.limits import above_zero, not_negative
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Proximal policy optimisation, arXiv:1707.06347; with ``vtrace`` also for experience of older policies (APPO)."""

    name: Literal["ppo"] = "ppo"
    """Which algorithm this section configures."""
    clip: float = 0.2
    """How far the probability of an action may move in one update, as a ratio."""
    value_clip: float | None = None
    """How far a value may move in one update, in units of the value network; None is not limited."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the policy's entropy."""
    kl_uniform_coef: float = 0.0
    """Weight of the symmetric divergence of choices from uniform ones: explores, and never lets a choice die out."""
    max_grad_norm: float = 0.5
    """Longest gradient; 0 is not limited."""
    vtrace: bool = False
    """Correct returns for the lag between acting and learning (V-trace, arXiv:1802.01561)."""
    vtrace_rho: float = 1.0
    """Largest importance weight of a step's own surprise: decides towards which policy's values V-trace goes."""
    vtrace_c: float = 1.0
    """Largest importance weight with which later surprises are passed back."""

    @property
    def by_column(self) -> bool:
        """Whether a minibatch is whole rollouts of some environments, not single steps of any."""
        return self.vtrace or super().by_column

    @property
    def seen_steps(self) -> int:
        """Rows of each environment that the network sees: V-trace needs the value of the one that follows."""
        return self.rollout_steps + self.vtrace

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        above_zero(self, "clip", "vtrace_rho", "vtrace_c")
        not_negative(self, "value_coef", "entropy_coef", "kl_uniform_coef", "max_grad_norm")
        if self.value_clip is not None and self.value_clip <= 0:
            raise ConfigError(f"value_clip must be above 0 or none, not {self.value_clip}")


def ppo_of(config: Any) -> PPOConfig:
    """Return the PPO inside another algorithm's config."""
    ppo: PPOConfig = config.ppo
    return ppo


SPEC = AlgorithmSpec(
    "ppo", PPOConfig, "rollouts", "roboloop.algos.ppo.ppo:make", "roboloop.algos.ppo.ppo:load_policy", check=check_split
)
