"""``doom/<scenario>``: ViZDoom."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.envs.config import PictureEnvConfig
from roboloop.envs.suite import Suite

IDS = (
    "basic",
    "deadly-corridor",
    "deathmatch",
    "defend-the-center",
    "defend-the-line",
    "health-gathering",
    "health-gathering-supreme",
    "my-way-home",
    "predict-position",
    "take-cover",
)
"""The single-player scenarios that ViZDoom's wheel ships."""


@dataclass(frozen=True)
class DoomEnvConfig(PictureEnvConfig):
    """Keys of ViZDoom."""

    grayscale: bool | None = None
    """Whether pictures are grey; none means no."""


SUITE = Suite("doom", "roboloop.envs.doom.world:make", IDS, DoomEnvConfig, packages=("vizdoom", "cv2"))
