"""What recording costs training: the same loop with and without it, block by block, on a state task and on Doom.

Each round runs a block with the recorder and one without, in changing order; the slowdown is the mean of the rounds'
ratios with a 95 % bootstrap interval. All environments are recorded into a budget that makes old episodes go, so the
writer works all the time. Bytes per step are those of the stored episodes, beside what the same steps take raw.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PPO = {"name": "ppo", "processes": 1}
TASKS: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5, PPO": {
        "env": {"id": "gym/HalfCheetah-v5", "num_envs": 8},
        "algo": {**PPO, "rollout_steps": 64, "minibatches": 4, "epochs": 4},
    },
    "HalfCheetah-v5, SAC": {"env": {"id": "gym/HalfCheetah-v5", "num_envs": 1}, "algo": {"processes": 1}},
    "doom/basic, PPO": {
        "env": {"id": "doom/basic", "num_envs": 8, "action_repeat": 4},
        "algo": {**PPO, "rollout_steps": 32, "minibatches": 1, "epochs": 1, "core": "gru"},
    },
    "doom/basic, PPO, two workers": {
        "env": {"id": "doom/basic", "num_envs": 16, "action_repeat": 4},
        "sample": {"groups": 2, "workers": 2},
        "algo": {"name": "ppo", "rollout_steps": 32, "batch_envs": 32, "minibatches": 1, "epochs": 1, "core": "gru"},
    },
}


class Loop:
    """The training loop of the runner without logs and checkpoints."""

    def __init__(self, task: dict[str, Any], keep: str, directory: Path) -> None:
        from roboloop.core.config import override
        from roboloop.run.build import build
        from roboloop.run.config import Experiment

        record = {"keep": keep, "budget_mb": 200, "min_free_mb": 0}
        self.cfg = override(Experiment(), {**task, "warmup_steps": 500, "record": record})
        self.cfg.check()
        self.parts = build(self.cfg)
        self.parts.recorder.begin(directory, 0)
        self.step = 0

    def run(self, seconds: float) -> float:
        """Return steps per second over about so many seconds."""
        sampler, store, algo, _, warmup, updates_due, recorder, _ = self.parts
        begin, begin_s = self.step, time.monotonic()
        while (spent_s := time.monotonic() - begin_s) < seconds:
            rollout = sampler.collect(warmup if self.step < self.cfg.warmup_steps else algo.policy)
            store.add(rollout)
            self.step += rollout.num_steps
            recorder.offer(rollout, self.step)
            for _ in updates_due(self.step, bool(rollout.episodes)):
                algo.update(store.sample())
            recorder.messages()
        while recorder.timing().get("record/ring_use"):  # what the writer still has to do must not slow the next block
            time.sleep(0.01)
        return (self.step - begin) / spent_s

    def close(self) -> list[str]:
        """Release everything; return what the recorder had to say."""
        self.parts.recorder.close()
        self.parts.sampler.close()
        self.parts.algo.close()
        return self.parts.recorder.messages()


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the slowdown and the bytes of one task."""
    from roboloop.data.dataset import Dataset
    from roboloop.track.stats import bootstrap_interval

    with tempfile.TemporaryDirectory() as directory:
        loops = {keep: Loop(TASKS[name], keep, Path(directory) / "dataset") for keep in ("none", "last")}
        for loop in loops.values():
            loop.run(min(seconds, 3.0))
        rates: dict[str, list[float]] = {keep: [] for keep in loops}
        for number in range(rounds):
            for keep in sorted(loops, reverse=bool(number % 2)):
                rates[keep].append(loops[keep].run(seconds))
        for loop in loops.values():
            loop.close()
        counts = json.loads((Path(directory) / "record.json").read_text())["counts"]
        dataset = Dataset.open(Path(directory) / "dataset")
        steps = max(dataset.num_steps, 1)
    slowdowns = [off / on - 1 for off, on in zip(rates["none"], rates["last"], strict=True)]
    return {
        "task": name,
        "steps_per_s": float(np.median(rates["none"])),
        "slowdown": float(np.mean(slowdowns)),
        "interval": list(bootstrap_interval(slowdowns)),
        "bytes_per_step": counts["stored_bytes"] / steps,
        "raw_bytes_per_step": counts["raw_bytes"] / steps,
        "dropped": sum(count for key, count in counts.items() if key.startswith("dropped_")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print(
        "| task | steps/s | slowdown | 95 % | bytes per step | raw | episodes dropped |\n|---|---|---|---|---|---|---|"
    )
    for name in args.tasks:
        row = measure(name, args.rounds, args.seconds)
        rows.append(row)
        low, high = row["interval"]
        print(
            f"| {name} | {row['steps_per_s']:.0f} | {row['slowdown']:.1%} | {low:.1%} to {high:.1%} "
            f"| {row['bytes_per_step']:.0f} | {row['raw_bytes_per_step']:.0f} | {row['dropped']} |",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
