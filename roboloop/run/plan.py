"""One resource plan per run, made from what the process may really use, and said before anything starts."""

from __future__ import annotations

import math
import shutil

from roboloop.core.errors import ConfigError
from roboloop.core.resources import free_memory_bytes, usable_cores
from roboloop.run.config import Experiment
from roboloop.sample.buffers import Shape

WORKER_MB = 350
"""What a worker with torch and a simulator takes, from measurements; its environments come on top."""
MB = 1_000_000


def describe(cfg: Experiment, shape: Shape) -> str:
    """Return the plan in one line; refuse one that cannot fit."""
    spec = shape.spec
    cores, free = usable_cores(), free_memory_bytes()
    learners, workers = cfg.algo.processes, cfg.sample.workers
    slots = (cfg.sample.queue if cfg.sample.free_running else 1) if workers else 0
    rollouts = max(slots, 1) * shape.layout().num_bytes
    store = cfg.replay.capacity * (spec.obs_dtype.itemsize * math.prod(spec.obs_shape) + 4 * spec.action_dim + 9)
    stored = store if cfg.algo.name == "sac" else 0
    wanted = rollouts + stored + workers * WORKER_MB * MB
    if wanted > free:
        raise ConfigError(
            f"this run would take {wanted / 1e9:.1f} GB (replay {stored / 1e9:.1f}, rollouts {rollouts / 1e9:.1f}, "
            f"{workers} workers), {free / 1e9:.1f} GB are free: lower replay.capacity, env.num_envs or sample.workers"
        )
    how = "free-running" if cfg.sample.free_running else "in lock step"
    alone = "processes of their own" if cfg.sample.inference == "central" else "this process"
    who = f"{workers} workers {how}" if workers else alone
    line = (
        f"plan: {cores:g} cores; {cfg.env.num_envs} envs in {cfg.sample.groups} groups stepped by {who}, "
        f"updates by up to {learners} processes, one thread each; rollouts {rollouts / MB:.0f} MB"
    )
    if stored:
        line += f", replay up to {stored / MB:.0f} MB"
    if workers:
        line += f"; shared memory is anonymous (/dev/shm, {_shm_mb()} MB free, is not used)"
    busy = workers + learners if cfg.sample.free_running else max(workers, learners)
    if busy > cores:
        line += f"; {busy} busy processes share {cores:g} cores"
    return line


def _shm_mb() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free // MB
    except OSError:
        return 0
