"""``envpool/<our id>``: EnvPool's ports of three of our suites."""

from __future__ import annotations

from roboloop.envs.gym import suite as gym
from roboloop.envs.metaworld.suite import MT10
from roboloop.envs.suite import Suite

IDS = (
    *(f"metaworld/{task}" for task in MT10),
    *(f"gym/{task}" for task in gym.IDS if task.endswith("-v5") and not task.startswith("ALE/")),
    *(f"dmc/{task}" for task in ("cheetah-run", "hopper-hop", "humanoid-walk", "reacher-easy", "walker-walk")),
)
"""Ids of ours for which EnvPool has a port, the common ones; it has one of every Meta-World and DM Control task."""

SUITE = Suite("envpool", "roboloop.envs.envpool.world:make", IDS, has_more=True, packages=("envpool",))
