"""``gymvec/<id>``: Gymnasium's vector environments, one simulator for all environments of a group."""

from __future__ import annotations

from roboloop.envs.gym.suite import modules
from roboloop.envs.suite import Suite

IDS = ("CartPole-v1",)
"""Gymnasium's own ids that come with a vector environment."""

SUITE = Suite(
    "gymvec",
    "roboloop.envs.gymvec.world:make",
    IDS,
    packages=("gymnasium",),
    make_vector="roboloop.envs.gymvec.world:make_vector",
    modules=modules,
    is_gymnasiums=True,
)
