"""``hopper``, ``laikago``, ``a1``: legged robots in three engines; ``hybrid``, ``tuned``: in learned simulators."""

from __future__ import annotations

from dataclasses import dataclass, field

from roboloop.envs.config import EnvConfig
from roboloop.envs.legged.config import HybridConfig, LeggedConfig
from roboloop.envs.suite import Suite

ENGINES = ("bullet", "dart", "mujoco")
"""Engines that a legged robot can be in."""

VARIANTS = ("soft", "deform", "heavy", "power", "emf", "latency", "slippery")
"""Ways in which a legged robot or its floor can be another one."""

IMPOSSIBLE = (("deform", "dart"), ("deform", "mujoco"), ("soft", "dart"))
"""Variants that an engine does not have: only Bullet has a deformable floor, and contacts of DART are rigid."""

TASKS = (
    *ENGINES,
    *(f"{engine}-{variant}" for engine in ENGINES for variant in VARIANTS if (variant, engine) not in IMPOSSIBLE),
)
"""Tasks of each legged robot: an engine, and how it differs."""

ROBOTS = {
    "hopper": "roboloop.envs.legged.hopper:HopperTask",
    "laikago": "roboloop.envs.legged.quadruped:LaikagoTask",
    "a1": "roboloop.envs.legged.quadruped:A1Task",
}
"""Robot, which is also the name of its suite -> ``module:class`` of its task."""

HYBRID = tuple(f"{robot}-{engine}" for robot in ROBOTS for engine in ENGINES)
"""A robot in an engine whose parameters are set at every step; a variant may follow."""


@dataclass(frozen=True)
class LeggedEnvConfig(EnvConfig):
    """Keys of legged robots."""

    legged: LeggedConfig = field(default_factory=LeggedConfig)
    """Noise, pushes and domains, and numbers that go before a variant's."""

    def check(self) -> None:
        """Refuse values that no robot can honour."""
        super().check()
        self.legged.check()


@dataclass(frozen=True)
class HybridEnvConfig(LeggedEnvConfig):
    """Keys of legged robots in hybrid simulators."""

    hybrid: HybridConfig = field(default_factory=HybridConfig)
    """The frozen policies inside the simulator."""


# which engine is missing, the engine says
HOPPER = Suite("hopper", "roboloop.envs.legged.hopper:make", TASKS, LeggedEnvConfig, has_more=True)
LAIKAGO = Suite("laikago", "roboloop.envs.legged.quadruped:make_laikago", TASKS, LeggedEnvConfig, has_more=True)
A1 = Suite("a1", "roboloop.envs.legged.quadruped:make_a1", TASKS, LeggedEnvConfig, has_more=True)
HYBRID_SUITE = Suite("hybrid", "roboloop.envs.legged.hybrid:make", HYBRID, HybridEnvConfig, has_more=True)
TUNED = Suite("tuned", "roboloop.envs.legged.hybrid:make_tuned", HYBRID, HybridEnvConfig, has_more=True)
