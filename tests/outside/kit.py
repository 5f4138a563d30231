"""Training with what ``examples/outside`` brings, from the command line."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.cli.test_cli import roboloop

SMALL = (
    "--warmup-steps", "60", "--trackers", "--eval.episodes", "2", "--eval.every-steps", "150",
    "--checkpoint.every-steps", "50", "--checkpoint.every-s", "0", "--log-every-steps", "50",
)  # fmt: skip
TWO_WORKERS = ("--env.num-envs", "2", "--sample.groups", "2", "--sample.workers", "2")


def train(root: Path, task: str, *words: object, experiment: str = "a", **variables: Any) -> Path:
    """Train and return the run."""
    done = roboloop("train", *SMALL, *words, "--experiment", experiment, "--runs-dir", root, **variables)
    assert done.returncode == 0, done.stderr
    return root / experiment / task / "0"


def digest(run: Path) -> tuple[str, str]:
    """Return what a run learned and logged."""
    last = sorted((run / "checkpoints").iterdir())[-1] / "state.safetensors"
    return hashlib.sha256(last.read_bytes()).hexdigest(), (run / "metrics.jsonl").read_text()
