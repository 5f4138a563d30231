"""Steps per second of free-running workers on Ray, by their number, on an environment that sleeps 5 ms a step.

The cluster is raylets on loopback, one CPU each. Two environments per worker, rollouts of 32 steps, a 64x64 net:
a worker that did nothing but sleep would make 200 steps a second. Learner's CPU time is per rollout, everything
between two ``collect`` calls that is not waiting; it and the bytes are what the cost model in docs is made of.
Bytes are all that went over loopback, less what the idle cluster sends in as long a time, for each rollout; beside
them what the model says: the rollout's columns in, and the weights out once for each order that finds new ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

PER_WORKER, ROLLOUT_STEPS = 2, 32
IDLE_S = 5.0


def start_cluster(nodes: int) -> Any:
    from roboloop.core.cluster import LOOPBACK, LOOPBACK_ONLY

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", LOOPBACK_ONLY: "0"}
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": 80_000_000, "node_ip_address": LOOPBACK}
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **common})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, **common)
    return cluster


@dataclass
class Cell:
    """What was measured with one number of workers."""

    steps_per_s: float
    learner_ms: float
    """CPU time for each rollout."""
    lag: float
    """Mean, in versions."""
    sent_kb: float
    """Over loopback, for each rollout."""
    model_kb: float


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


ALGOS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": {"name": "ppo", "rollout_steps": ROLLOUT_STEPS, "minibatches": 1}},
    "sac": {"algo": {"name": "sac"}, "sample": {"steps": ROLLOUT_STEPS}, "warmup_steps": 0},
}


def measure(address: str, workers: int, args: argparse.Namespace) -> Cell:
    from roboloop.core.config import override
    from roboloop.data.rollouts import COLUMNS
    from roboloop.run.build import build
    from roboloop.run.config import Experiment

    sample = {"groups": workers, "workers": workers, "free_running": True, "on": "ray", "address": f"ray://{address}"}
    sample["publish_every_s"] = args.publish_every_s
    env = {"id": "gym/_slow_env:Slow-v0", "num_envs": PER_WORKER * workers}
    cfg = override(Experiment(), ALGOS[args.algo])
    parts = build(override(cfg, {"env": env, "sample": sample, "algo": {"processes": 1, "hidden": args.hidden}}))
    policy, seen = parts.algo.policy, set()
    while len(seen) < workers:  # all have begun
        seen.add(parts.sampler.collect(policy).first_env)
    parts.sampler.stats()
    steps = rollouts = 0
    begin_s, cpu_s, begin_bytes = time.monotonic(), time.process_time(), loopback_bytes()
    while (spent_s := time.monotonic() - begin_s) < args.seconds:
        policy.version += 1  # each rollout is followed by new weights
        rollout = parts.sampler.collect(policy)
        steps += rollout.num_steps
        rollouts += 1
    cpu_ms = 1000 * (time.process_time() - cpu_s) / rollouts
    sent = loopback_bytes() - begin_bytes
    lag = parts.sampler.stats()["sample/lag_mean"]
    rollout_bytes = sum(getattr(rollout, name).nbytes for name in COLUMNS)
    orders_per_version = max(1.0, args.publish_every_s * rollouts / spent_s / workers)  # each worker is a machine here
    parts.sampler.close()
    parts.algo.close()
    time.sleep(1)
    idle_bytes = loopback_bytes()
    time.sleep(IDLE_S)
    idle_per_s = (loopback_bytes() - idle_bytes) / IDLE_S
    sent_kb = (sent - idle_per_s * spent_s) / rollouts / 1000
    model_kb = (rollout_bytes + 4 * policy.num_weights / orders_per_version) / 1000
    return Cell(steps / spent_s, cpu_ms, lag, sent_kb, model_kb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--algo", choices=list(ALGOS), default="ppo")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--publish-every-s", type=float, default=0.0)
    args = parser.parse_args()
    cluster = start_cluster(max(args.workers))
    print("| workers | steps/s | of one worker's | learner ms (CPU) per rollout | mean lag | kB per rollout | model |")
    print("|---|---|---|---|---|---|---|")
    first = 0.0
    for workers in args.workers:
        cell = measure(cluster.address, workers, args)
        first = first or cell.steps_per_s / workers
        print(
            f"| {workers} | {cell.steps_per_s:.0f} | {cell.steps_per_s / first:.2f} | {cell.learner_ms:.1f} "
            f"| {cell.lag:.1f} | {cell.sent_kb:.1f} | {cell.model_kb:.1f} |",
            flush=True,
        )
    import ray

    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
