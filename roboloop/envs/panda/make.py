"""``panda/<task>``: the rig as an ordinary environment."""

from __future__ import annotations

from importlib import metadata

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.resolve import entry_points, load_named
from roboloop.envs.env import FLOAT, Task
from roboloop.envs.panda import tasks
from roboloop.envs.panda.auxiliary import PandaTasks
from roboloop.envs.panda.config import ROBOTS, PandaConfig
from roboloop.envs.panda.rig import Rig, RigEnv
from roboloop.envs.panda.robot import Robot
from roboloop.envs.panda.suite import PandaEnvConfig


def make_robot(task: tasks.PandaTask, cfg: PandaConfig) -> Robot:
    """Return the driver that a config asks for, not yet connected."""
    if cfg.driver == "process":
        from roboloop.envs.panda.client import ProcessPanda

        return ProcessPanda(task.name, cfg)
    if cfg.driver == "virtual":
        from roboloop.envs.panda.virtual import VirtualPanda

        return VirtualPanda(task, cfg.faults)
    path = entry_points(ROBOTS).get(cfg.driver, cfg.driver)
    robot: Robot = load_named(path, "env.panda.driver")(task, cfg)
    if missing := [name for name in ("connect", "read", "send", "hold", "close") if not hasattr(robot, name)]:
        raise ConfigError(f"env.panda.driver {cfg.driver!r} must return a Robot: it has no {missing[0]}()")
    return robot


def make(task: str, cfg: PandaEnvConfig, evaluation: bool, robot: Robot | None = None) -> RigEnv:
    """Make ``panda/<task>``, on a robot of one's own where one is given."""
    panda = cfg.panda
    found = tasks.find(task, panda)
    if cfg.action_repeat != 1:
        raise ConfigError("a rig repeats no actions: env.panda.hz says how long one is held")
    rig = Rig(robot or make_robot(found, panda), found, panda)
    protocol: dict[str, str | int | float | bool] = {
        "suite": f"panda, mujoco {metadata.version('mujoco')}",
        "task": task,
        "hz": panda.hz,
        "limits": panda.limits,
        "reward": panda.reward,
        "done_on_success": panda.done_on_success,
        "dof": " ".join(found.dof),
        "observe": " ".join(found.observe),
        "max_speed_m_s": panda.max_speed_m_s,
        "max_force_n": panda.max_force_n,
    }
    bound = np.ones(rig.action_dim, np.float32)
    horizon = cfg.horizon(round(panda.episode_s * panda.hz), evaluation)
    declared = PandaTasks(found, panda).names
    return RigEnv(rig, Task((rig.obs_size,), FLOAT, -bound, bound, horizon, 1, protocol, tasks=declared))
