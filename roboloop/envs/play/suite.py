"""``play/<task>``: a planar play world of our own, with auxiliary tasks."""

from __future__ import annotations

from roboloop.envs.suite import Suite

TASKS = ("place", "perch", "reach", "grasp", "move", "release")
"""Each is the main task of an environment of its own, with all others but that of the other stand."""

SUITE = Suite(
    "play",
    "roboloop.envs.play.world:make",
    TASKS,
    tasks="roboloop.envs.play.tasks:tasks",
    expert="roboloop.envs.play.experts:scripted_policy",
)
