"""Settings of generative adversarial imitation: those of its parts, and how they take turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.learner.config import check_split
from roboloop.algos.limits import at_least_one
from roboloop.algos.ppo.config import PPOConfig, ppo_of
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError
from roboloop.data.config import ExpertConfig


@dataclass(frozen=True)
class GAILConfig:
    """PPO on a discriminator's rewards (arXiv:1606.03476); the environment's own are not looked at."""

    name: Literal["gail"] = "gail"
    """Which algorithm this section configures."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """What learns from the rewards."""
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """What pays them."""
    expert: ExpertConfig = field(default_factory=lambda: ExpertConfig(end_share=0.0))
    """What is to be imitated; steps are drawn as often as they occur unless ``end_share`` says otherwise."""
    discriminator_updates: int = 16
    """Steps of the discriminator on each rollout, before it is paid for."""
    discriminator_batch: int = 128
    """Steps of the policy in each of these, and as many of the expert."""
    replay_rollouts: int = 1
    """Latest rollouts that the policy's steps are drawn from: with more of them, what was unlearned stays known."""

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.ppo.processes

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.ppo.check()
        self.discriminator.check()
        self.expert.check()
        at_least_one(self, "discriminator_updates", "discriminator_batch", "replay_rollouts")
        if not 0 < self.ppo.gamma < 1:
            raise ConfigError(
                f"gail needs algo.ppo.gamma between 0 and 1, not {self.ppo.gamma}: an end is paid for ever"
            )


SPEC = AlgorithmSpec(
    "gail", GAILConfig, "rollouts", "roboloop.algos.gail.gail:make", "roboloop.algos.ppo.ppo:load_policy",
    frame_stack=False, rollout=ppo_of, check=check_split,
)  # fmt: skip
