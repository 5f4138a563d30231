"""``panda/<task>``: a Franka Panda rig, simulated or behind a driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from roboloop.core.errors import ConfigError
from roboloop.envs.config import EnvConfig
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.suite import Suite

TASKS = ("reach", "push", "drawer", "door")


@dataclass(frozen=True)
class PandaEnvConfig(EnvConfig):
    """Keys of the Panda rig."""

    panda: PandaConfig = field(default_factory=PandaConfig)
    """The rig's rates, limits, rewards and driver."""

    def check(self) -> None:
        """Refuse values that no rig can honour."""
        super().check()
        self.panda.check()
        if self.panda.address and self.num_envs > 1:
            raise ConfigError(f"env.num_envs must be 1 with env.panda.address: one arm is there, not {self.num_envs}")

    def code(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name code; a driver of one's own is one."""
        yield from super().code()
        if ":" in self.panda.driver:
            yield "panda.driver", self.panda.driver

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name a file or an address; the arm's is one."""
        if self.panda.address:
            yield "panda.address", self.panda.address

    @property
    def on_wall_clock(self) -> bool:
        """Whether a driver leads the arm that does not wait."""
        return self.panda.driver != "virtual"

    @property
    def robot_address(self) -> str:
        """Where the arm is."""
        return self.panda.address

    @property
    def rate_hz(self) -> float:
        """Decisions per second."""
        return self.panda.hz


SUITE = Suite(
    "panda",
    "roboloop.envs.panda.make:make",
    TASKS,
    PandaEnvConfig,
    packages=("pybullet_data", "mujoco"),
    tasks="roboloop.envs.panda.auxiliary:tasks",
    expert="roboloop.envs.panda.experts:scripted_policy",
    serve="roboloop.envs.panda.server:serve",
    check_reachable="roboloop.envs.panda.drivers:check_reachable",
    example="reach",
)
