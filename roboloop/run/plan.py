"""One resource plan per run, made from what the process may really use, and said before anything starts."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from roboloop.core.errors import ConfigError
from roboloop.core.resources import free_memory_bytes, usable_cores
from roboloop.core.types import EnvSpec
from roboloop.data.config import RecordConfig
from roboloop.run.config import Experiment
from roboloop.sample.buffers import RolloutShape

WORKER_MB = 350
"""What a worker with torch and a simulator takes, from measurements; its environments come on top."""
MB = 1_000_000
ASSUMED_COMPRESSION = 2.0
"""Before the first episode is stored; what it really is stands in timing.jsonl as record/compression."""


def describe(cfg: Experiment, shape: RolloutShape) -> str:
    """Return the plan in one line; refuse one that cannot fit."""
    spec = shape.spec
    cores, free = usable_cores(), free_memory_bytes()
    learners, workers, elsewhere = getattr(cfg.algo, "processes", 1), cfg.sample.workers, cfg.sample.on == "ray"
    local = 0 if elsewhere else workers
    slots = (cfg.sample.queue if cfg.sample.free_running else 1) if workers else 0
    rollouts = max(slots, 1) * shape.layout().num_bytes
    stored = replay_bytes(cfg.replay.capacity, spec) if cfg.has_replay else 0
    recorder = recorder_bytes(cfg.record, shape)
    wanted = rollouts + stored + recorder + local * WORKER_MB * MB
    if wanted > free:
        recording = f", recorder {recorder / 1e9:.1f}" if recorder else ""
        raise ConfigError(
            f"this run would take {wanted / 1e9:.1f} GB (replay {stored / 1e9:.1f}, rollouts {rollouts / 1e9:.1f}"
            f"{recording}, {local} workers), {free / 1e9:.1f} GB are free: lower replay.capacity, env.num_envs"
            f"{', record.streams' if recorder else ''} or sample.workers"
        )
    how = "free-running" if cfg.sample.free_running else "in lock step"
    alone = "processes of their own" if cfg.sample.inference == "central" else "this process"
    who = f"{workers} workers {'on Ray ' if elsewhere else ''}{how}" if workers else alone
    if cfg.sample.real_time != "off":
        pilot = "a process of its own" if cfg.sample.real_time == "process" else "this process"
        who = f"{pilot} at {cfg.env.rate_hz:g} Hz"
    line = (
        f"plan: {cores:g} cores; {cfg.env.num_envs} envs in {cfg.sample.groups} groups stepped by {who}, "
        f"updates by up to {learners} processes, one thread each; rollouts {rollouts / MB:.0f} MB"
    )
    if stored:
        line += f", replay up to {stored / MB:.0f} MB"
    if local:
        line += f"; shared memory is anonymous (/dev/shm, {_shm_mb()} MB free, is not used)"
    busy = local + learners if cfg.sample.free_running else max(local, learners)
    if busy > cores:
        line += f"; {busy} busy processes share {cores:g} cores"
    if "resumed" in spec.protocol:
        line += f"\nresume: {cfg.env.id} cannot save its state: a resumed run goes on with new episodes"
    if recorder:
        line += f"\n{describe_recording(cfg, spec)}; memory up to {recorder / MB:.0f} MB"
    return line


def replay_bytes(capacity: int, spec: EnvSpec) -> int:
    """Return the memory of a replay ring: each observation once, action, reward, flags and age."""
    return capacity * (spec.obs_dtype.itemsize * math.prod(spec.obs_shape) + 4 * spec.action_dim + 9)


def recorder_bytes(cfg: RecordConfig, shape: RolloutShape) -> int:
    """Return the most memory that recording takes: the ring, and the running episodes that the writer holds."""
    if cfg.keep == "none":
        return 0
    from roboloop.data.assembly import raw_bytes
    from roboloop.data.recorder import ring_bytes

    episode = int(raw_bytes(shape.spec, shape.spec.max_episode_steps))
    ring = ring_bytes(cfg, shape.spec, shape.num_envs, shape.steps)
    return ring + cfg.num_streams(shape.num_envs) * episode


def describe_recording(cfg: Experiment, spec: EnvSpec) -> str:
    """Return what recording would put on disk; refuse a plan without a budget that the disk cannot hold."""
    from roboloop.data.assembly import raw_bytes
    from roboloop.data.episodes import row_bytes

    record = cfg.record
    per_step = int(raw_bytes(spec, 1)) - row_bytes(spec)
    selected = record.selected(cfg.env.num_envs)
    raw = int(cfg.steps * selected * per_step)
    free = _free_disk_bytes(Path(cfg.runs_dir)) - record.min_free_mb * MB
    line = (
        f"record: {cfg.steps:,} steps x {selected:.3g} selected x {per_step:,} B = {_size(raw)} raw, about "
        f"{_size(raw / ASSUMED_COMPRESSION)} at an assumed compression of {ASSUMED_COMPRESSION:g}"
    )
    if record.keep == "all" and not record.budget_mb and raw > free:
        raise ConfigError(
            f"{line}; {_size(max(free, 0))} may be used: set record.budget_mb, or record.streams, every or keep"
        )
    return f"{line}; keep {record.keep} within {_size(record.budget_bytes) if record.budget_mb else 'no budget'}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / MB:,.1f} MB"


def _free_disk_bytes(path: Path) -> int:
    """Return what is free where a path is, or will be."""
    return shutil.disk_usage(next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())).free


def _shm_mb() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free // MB
    except OSError:
        return 0
