"""``gymvec/<id>``: Gymnasium's vector environments, one simulator for all environments of a group."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.envs.gym.suite import MadeEnvConfig, modules
from roboloop.envs.suite import Suite

IDS = ("CartPole-v1",)
"""Gymnasium's own ids that come with a vector environment."""


@dataclass(frozen=True)
class GymVecEnvConfig(MadeEnvConfig):
    """Keys of vector environments; wrappers are vector wrappers."""

    @property
    def ours(self) -> tuple[str, ...]:
        """Arguments that roboloop gives."""
        return (*super().ours, "num_envs", "max_episode_steps")


SUITE = Suite(
    "gymvec",
    "roboloop.envs.gymvec.world:make",
    IDS,
    GymVecEnvConfig,
    has_more=True,
    packages=("gymnasium",),
    make_vector="roboloop.envs.gymvec.world:make_vector",
    modules=modules,
    is_gymnasiums=True,
    is_environment="roboloop.envs.gymvec.source:is_environment",
)
