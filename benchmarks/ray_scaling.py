"""Steps per second of free-running workers on Ray, by their number, on an environment that sleeps 5 ms a step.

The cluster is raylets on loopback, one CPU each. Two environments per worker, rollouts of 32 steps, PPO's 64x64 net:
a worker that did nothing but sleep would make 200 steps a second. Learner's CPU time is per rollout, everything
between two ``collect`` calls that is not waiting; it and the bytes are what the cost model in docs is made of.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

PER_WORKER, ROLLOUT_STEPS = 2, 32


def start_cluster(nodes: int) -> Any:
    from roboloop.core.cluster import LOOPBACK, LOOPBACK_ONLY

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", LOOPBACK_ONLY: "0"}
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": 80_000_000, "node_ip_address": LOOPBACK}
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **common})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, **common)
    return cluster


def measure(address: str, workers: int, seconds: float) -> tuple[float, float, float]:
    """Return steps per second, the learner's CPU milliseconds per rollout, and the mean lag in versions."""
    from roboloop.core.config import override
    from roboloop.run.build import build
    from roboloop.run.config import Experiment

    sample = {"groups": workers, "workers": workers, "free_running": True, "on": "ray", "address": f"ray://{address}"}
    algo = {"name": "ppo", "rollout_steps": ROLLOUT_STEPS, "minibatches": 1, "processes": 1}
    env = {"id": "gym/_slow_env:Slow-v0", "num_envs": PER_WORKER * workers}
    parts = build(override(Experiment(), {"env": env, "sample": sample, "algo": algo}))
    policy, seen = parts.algo.policy, set()
    while len(seen) < workers:  # all have begun
        seen.add(parts.sampler.collect(policy).first_env)
    parts.sampler.stats()
    steps = rollouts = 0
    begin_s, cpu_s = time.monotonic(), time.process_time()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        policy.version += 1  # each rollout is followed by new weights
        steps += parts.sampler.collect(policy).num_steps
        rollouts += 1
    cpu_ms = 1000 * (time.process_time() - cpu_s) / rollouts
    lag = parts.sampler.stats()["sample/lag_mean"]
    parts.sampler.close()
    parts.algo.close()
    return steps / spent_s, cpu_ms, lag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=8.0)
    args = parser.parse_args()
    cluster = start_cluster(max(args.workers))
    print("| workers | steps/s | of one worker's | learner ms (CPU) per rollout | mean lag |\n|---|---|---|---|---|")
    first = 0.0
    for workers in args.workers:
        rate, cpu_ms, lag = measure(cluster.address, workers, args.seconds)
        first = first or rate / workers
        print(f"| {workers} | {rate:.0f} | {rate / first:.2f} | {cpu_ms:.1f} | {lag:.1f} |", flush=True)
    import ray

    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
