"""``soft/<task>``: rope and cloth as environments."""

from __future__ import annotations

from importlib import metadata

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.envs.env import Task
from roboloop.envs.soft.suite import SoftEnvConfig
from roboloop.envs.soft.tasks import find, reward_of
from roboloop.envs.soft.world import SoftEnv, SoftWorld

IMAGE_SIZE = (64, 64)


def make(task: str, cfg: SoftEnvConfig, evaluation: bool) -> SoftEnv:
    """Make ``soft/<task>``."""
    found, soft = find(task), cfg.soft
    height, width = cfg.image_size or IMAGE_SIZE
    if height != width:
        raise ConfigError(f"env.image_size of soft/{task} must be square, got {height} {width}")
    if cfg.action_repeat != 1:
        raise ConfigError(f"soft/{task} repeats no actions: one is a whole pick and place")
    reward = reward_of(task, soft.reward)
    world = SoftWorld(found, reward, cfg.observe == "pixels", height, soft)
    protocol: dict[str, str | int | float | bool] = {
        "suite": f"soft, mujoco {metadata.version('mujoco')}",
        "task": task,
        "observe": cfg.observe,
        "pick": found.pick,
        "picked_by": soft.pick,
        "reward": reward,
        "randomize": " ".join(soft.randomize),
        "start": soft.start,
        "pool": soft.pool,
    }
    bound = np.ones(world.action_dim, np.float32)
    horizon = cfg.horizon(found.horizon, evaluation)
    return SoftEnv(world, Task(world.obs_shape, world.obs_dtype, -bound, bound, horizon, 1, protocol))
