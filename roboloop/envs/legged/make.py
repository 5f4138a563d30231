"""From ``<engine>[-<variant>]`` to a legged robot's world and environment."""

from __future__ import annotations

from importlib import metadata
from typing import cast

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.resolve import resolve
from roboloop.envs.env import FLOAT, EpisodeEnv, Task
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.engine import EXTRAS
from roboloop.envs.legged.suite import ENGINES, ROBOTS, LeggedEnvConfig
from roboloop.envs.legged.variants import find, override
from roboloop.envs.legged.world import HORIZON, LeggedTask, LeggedWorld


def find_robot(name: str) -> LeggedTask:
    """Return a robot's task by the name of its suite."""
    if name not in ROBOTS:
        raise ConfigError(f"unknown robot {name!r}{nearest(name, ROBOTS)} (known: {', '.join(ROBOTS)})")
    return cast("LeggedTask", resolve(ROBOTS[name])())


def make_world(robot: LeggedTask, task: str, cfg: LeggedConfig) -> LeggedWorld:
    """Make the world of ``<engine>[-<variant>]``."""
    engine, _, name = task.partition("-")
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise ConfigError(f"unknown engine {engine!r} of {robot.model.name}{nearest(engine, ENGINES)} (known: {known})")
    variant = override(find(name, robot.variants, robot.model.name, engine), cfg, robot.model.num_joints)
    if engine == "dart" and variant.is_soft:
        raise ConfigError("env.legged.contact_stiffness_n_m and contact_damping_ns_m: contacts of dart are rigid")
    return LeggedWorld(robot, engine, variant, cfg)


def protocol(robot: LeggedTask, task: str, cfg: LeggedConfig) -> dict[str, str | int | float | bool]:
    """Return what identifies results of a legged robot."""
    package = EXTRAS[task.partition("-")[0]][0]
    said: dict[str, str | int | float | bool] = {
        "suite": f"{robot.model.name}, {package} {metadata.version(package)}",
        "task": task,
        "obs_noise": cfg.obs_noise,
        "action_noise": cfg.action_noise,
        "randomize": cfg.randomize,
        "push_n": cfg.push_n,
    }
    own = LeggedConfig()
    for name in ("torque_scale", "friction", "restitution", "contact_stiffness_n_m", "contact_damping_ns_m"):
        if getattr(cfg, name) != getattr(own, name):
            said[name] = str(getattr(cfg, name))
    for name in ("latency_s", "emf_speed_rad_s"):
        if getattr(cfg, name) is not None:
            said[name] = float(getattr(cfg, name))
    return said


def make_env(robot: LeggedTask, task: str, cfg: LeggedEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make a legged robot's environment."""
    world = make_world(robot, task, cfg.legged)
    bound = np.ones(robot.model.num_joints, np.float32)
    return EpisodeEnv(
        world,
        Task(
            obs_shape=(robot.state_dim * len(robot.lags),),
            obs_dtype=FLOAT,
            action_low=-bound,
            action_high=bound,
            horizon=cfg.horizon(HORIZON, evaluation),
            action_repeat=cfg.action_repeat,
            protocol=protocol(robot, task, cfg.legged),
        ),
    )
