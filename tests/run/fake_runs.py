"""Run directories as training and evaluation leave them, in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PROTOCOL = {"suite": "toy 1", "horizon": 10}


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(
    root: Path,
    experiment: str = "sac",
    task: str = "reach",
    seed: int = 0,
    success: Mapping[int, float] | None = None,
    tasks: Mapping[str, Mapping[int, float]] | None = None,
    config: Mapping[str, Any] | None = None,
    **status: Any,
) -> Path:
    """Write a run that was evaluated at some steps; ``tasks`` has the success of each task of a set."""
    run = root / experiment / task / str(seed)
    run.mkdir(parents=True)
    curve = {10: 0.5, 20: 1.0} if success is None else success
    rows = []
    for step, value in curve.items():
        of_tasks = {f"eval/success/{name}": values[step] for name, values in (tasks or {}).items()}
        rows.append({"step": step, "eval/success": value, "eval/return": 100 * value, **of_tasks})
    last = max(curve, default=0)
    (run / "metrics.jsonl").write_text(lines(rows))
    timing = {"collect_s": last / 10, "update_s": 3 * last / 10, "eval_s": 0.0, "steps_per_s": 5.0}
    (run / "timing.jsonl").write_text(lines([{"step": last, "wall_s": 4 * last / 10, **timing}]))
    state = {"state": "done", "step": last, "steps": last, "pid": 1, "host": "elsewhere", "boot_id": ""}
    (run / "status.json").write_text(json.dumps(state | status))
    settings = {"experiment": experiment, "seed": seed, "steps": last, "algo": {"name": "sac", "gamma": 0.99}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings | dict(config or {})))
    meta = {"command": ["roboloop", "train", "--config", "/home/somebody/mine.yaml"], "versions": {"numpy": "2.0"}}
    (run / "meta.json").write_text(json.dumps({**meta, "git": "0123456789abcdef", "git_dirty": True, "python": "3"}))
    return run


def write_eval(
    run: Path, step: int, success: Sequence[float | None], tasks: Sequence[str] = (), name: str = "", **header: Any
) -> Path:
    """Write a held-out evaluation; of several tasks the episodes take turns."""
    episodes = len(success) // max(1, len(tasks))
    about = {"plan": {"episodes": episodes, "seed": 0, "split": "test"}, "protocol": PROTOCOL, "checkpoint_step": step}
    rows: list[dict[str, Any]] = [about | header]
    for i, each in enumerate(success):
        task = {"task": tasks[i % len(tasks)]} if tasks else {}
        rows.append({"episode": i, "seed": i, **task, "return": 10 * (each or 0), "length": 10, "success": each})
    path = run / "eval" / f"{name or f'test-step-{step}'}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(lines(rows))
    return path
