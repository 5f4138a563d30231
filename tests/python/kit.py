"""Trainings of a second or two."""

from __future__ import annotations

from pathlib import Path

SMALL = {
    "steps": 300, "warmup_steps": 60, "log_every_steps": 50, "trackers": [],
    "algo": {"hidden": [16, 16], "batch_size": 16, "processes": 1}, "replay": {"capacity": 2000},
    "eval": {"every_steps": 150, "episodes": 2}, "checkpoint": {"every_steps": 100, "every_s": 0},
}  # fmt: skip


def small(folder: Path, **changes):
    """Return arguments of ``rl.train`` for a tiny run below a folder."""
    return {**SMALL, "env": "tiny/point", "runs_dir": folder / "runs", "quiet": True, **changes}


def weights(run) -> bytes:
    """Return the last checkpoint's state as it is on disk."""
    last = run.checkpoints[-1]
    return (run.path / "checkpoints" / f"step-{last:012d}" / "state.safetensors").read_bytes()
