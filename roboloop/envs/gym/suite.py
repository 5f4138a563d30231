"""``gym/<id>``: any Gymnasium environment, and Atari's games."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roboloop.core.errors import ConfigError
from roboloop.core.tasks import SEPARATOR
from roboloop.envs.config import EnvConfig, PictureEnvConfig
from roboloop.envs.suite import Suite

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
ATARI = "ALE/"
"""Beginning of the ids of Atari's games."""


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

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name a file; a constructor may open what it is given."""
        yield from super().places()
        yield from ((key, text) for key, text in _texts("kwargs", self.kwargs) if _may_be_place(text))

    @property
    def ours(self) -> tuple[str, ...]:
        """Arguments that roboloop gives."""
        return ("render_mode",)


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(f"{key}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(key, part)
    elif isinstance(value, str):
        yield key, value


def _may_be_place(text: str) -> bool:
    """Say whether a text can be a path, an id with a module, or the name of a file in the working directory."""
    return any(sign in text for sign in "/:~") or os.path.lexists(text)


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
