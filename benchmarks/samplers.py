"""Steps per second of collecting alone, by sampler and number of workers, on a cheap and on an expensive environment.

HalfCheetah-v5 is cheap and uses the processor; the slow one sleeps 5 ms per step, so that scaling beyond the cores of
this machine can be seen. The policy is PPO's 64x64 net, rollouts of 32 steps, 2 environments per worker. Memory is the
proportional set size of a worker, per environment, with torch and simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # workers import the slow environment from here

ENVS = {"HalfCheetah-v5": "gym/HalfCheetah-v5", "slow (5 ms a step)": "gym/_slow_env:Slow-v0"}
PER_WORKER = 2


def build(env_id: str, workers: int, mode: str) -> Any:
    """Return our parts with a sampler of one kind."""
    from roboloop.core.config import override
    from roboloop.run.build import build as build_parts
    from roboloop.run.config import Experiment

    sample: dict[str, Any] = {"groups": workers}
    if mode != "serial":
        sample |= {"workers": workers, "free_running": mode == "free-running"}
    algo = {"name": "ppo", "rollout_steps": 32, "minibatches": 1, "processes": 1}
    return build_parts(override(Experiment(), {
        "env": {"id": env_id, "num_envs": PER_WORKER * workers}, "sample": sample, "algo": algo
    }))  # fmt: skip


def rate(parts: Any, seconds: float) -> float:
    """Return steps per second over about so many seconds."""
    steps, begin_s = 0, time.monotonic()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        steps += parts.sampler.collect(parts.algo.policy).num_steps
    return steps / spent_s


def worker_pss_mb(parts: Any) -> float | None:
    """Return what one worker holds per environment."""
    crew = getattr(parts.sampler, "_crew", None)
    if crew is None:
        return None
    from doom import pss_gb

    return 1000 * statistics.median(pss_gb(pid) for pid in crew.pids) / PER_WORKER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        "| environment | workers x envs | serial | lock step | free-running | MB per env |\n|---|---|---|---|---|---|"
    )
    for name, env_id in ENVS.items():
        for workers in args.workers:
            modes = {mode: build(env_id, workers, mode) for mode in ("serial", "lock step", "free-running")}
            rates: dict[str, list[float]] = {mode: [] for mode in modes}
            for parts in modes.values():
                rate(parts, 1.0)
            for _ in range(args.rounds):
                for mode, parts in modes.items():
                    rates[mode].append(rate(parts, args.seconds))
            memory = worker_pss_mb(modes["lock step"])
            for parts in modes.values():
                parts.sampler.close()
                parts.algo.close()
            median = {mode: statistics.median(values) for mode, values in rates.items()}
            rows.append({"env": name, "workers": workers, "rates": rates, "mb_per_env": memory})
            cells = " | ".join(f"{median[mode]:.0f}" for mode in modes)
            print(f"| {name} | {workers} x {PER_WORKER} | {cells} | {memory:.0f} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "rows": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
