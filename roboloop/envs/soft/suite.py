"""``soft/<task>``: rope and cloth on a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from roboloop.envs.config import ViewEnvConfig
from roboloop.envs.soft.config import SoftConfig
from roboloop.envs.suite import Suite

TASKS = (
    "rope-straighten",
    "cloth-corner",
    "cloth-spread",
    "cloth-two-hand",
    "cloth-goal",
    "cloth-fold",
    "seam-3",
    "seam-6",
    "seam-9",
)


@dataclass(frozen=True)
class SoftEnvConfig(ViewEnvConfig):
    """Keys of rope and cloth."""

    soft: SoftConfig = field(default_factory=SoftConfig)
    """Picks, rewards and first states."""

    def check(self) -> None:
        """Refuse unknown words."""
        super().check()
        self.soft.check()


SUITE = Suite(
    "soft",
    "roboloop.envs.soft.make:make",
    TASKS,
    SoftEnvConfig,
    packages=("mujoco",),
    expert="roboloop.envs.soft.experts:scripted_policy",
    has_named_experts=True,
)
