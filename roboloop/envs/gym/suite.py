"""``gym/<id>``: any Gymnasium environment, and Atari's games."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roboloop.core.errors import ConfigError
from roboloop.envs.config import EnvConfig, PictureEnvConfig
from roboloop.envs.suite import Suite
from roboloop.envs.task_set import SEPARATOR

IDS = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Taxi-v4",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "CarRacing-v3",
    "ALE/BeamRider-v5",
    "ALE/Breakout-v5",
    "ALE/Enduro-v5",
    "ALE/MsPacman-v5",
    "ALE/Pong-v5",
    "ALE/Qbert-v5",
    "ALE/Seaquest-v5",
    "ALE/SpaceInvaders-v5",
)
"""Gymnasium's common tasks; the lander, the walker and the car need the extra box2d, ALE's games atari."""


@dataclass(frozen=True)
class MadeEnvConfig(EnvConfig):
    """Of what Gymnasium makes, or a class of the user's."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, such as --env.kwargs.gravity 9.8."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around the environment, the innermost first, each as module:attr of wrapper(env) -> env."""

    def check(self) -> None:
        """Refuse arguments that are ours to give."""
        super().check()
        for name in self.ours:
            if name in self.kwargs:
                raise ConfigError(f"env.kwargs.{name} is set by roboloop: leave it out")

    def code(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name code; wrappers are some."""
        yield from super().code()
        yield from (("wrappers", name) for name in self.wrappers)

    @property
    def ours(self) -> tuple[str, ...]:
        """Arguments that roboloop gives."""
        return ("render_mode",)


@dataclass(frozen=True)
class GymEnvConfig(MadeEnvConfig, PictureEnvConfig):
    """Keys of Gymnasium environments."""

    grayscale: bool | None = None
    """Whether Atari's pictures are grey; none means yes."""


def modules(task: str) -> Sequence[str]:
    """Return the modules of ``module:Id`` and ``module:Class``."""
    named = [part.rpartition(":")[0] for part in task.split(SEPARATOR) if ":" in part]
    # what a script or a notebook defined is never imported: who resumes it must give it anew
    return [module for module in named if module != "__main__"]


SUITE = Suite(
    "gym",
    "roboloop.envs.gym.world:make",
    IDS,
    GymEnvConfig,
    has_more=True,
    packages=("gymnasium", "mujoco"),
    modules=modules,
    examine="roboloop.envs.gym.examine:examine",
    is_gymnasiums=True,
    is_environment="roboloop.envs.gym.source:is_environment",
    example="HalfCheetah-v5",
)
