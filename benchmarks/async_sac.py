"""Environment steps per second of SAC, serial collection beside free-running workers, at equal updates per step.

For each environment and update ratio: the serial sampler with two learner processes and with one, and free-running
collection in one worker beside one or two learner processes. All in one run, block by block.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from _contender import Contender, Run, interleave, medians, serve

ENVS = {"reach-v3": "metaworld/reach-v3", "HalfCheetah-v5": "gym/HalfCheetah-v5"}
MODES = {
    "serial, 2 learners": {"algo": {"processes": 2}},
    "serial, 1 learner": {"algo": {"processes": 1}},
    "free, 1 learner": {"algo": {"processes": 1}, "sample": {"workers": 1, "free_running": True, "steps": 8}},
    "free, 2 learners": {"algo": {"processes": 2}, "sample": {"workers": 1, "free_running": True, "steps": 8}},
}
NUM_ENVS = 8
ROLLOUT = NUM_ENVS * 8
"""Steps of the largest rollout: what is timed must be whole ones."""


def make(env_id: str, per_step: float, mode: str) -> Run:
    """Our parts in our loop."""
    from roboloop.core.config import override
    from roboloop.run.build import build
    from roboloop.run.config import Experiment

    base = override(Experiment(), {"env": {"id": env_id, "num_envs": NUM_ENVS}, "update": {"per_step": per_step}})
    sampler, store, algo, *_ = build(override(base, MODES[mode]))
    done = {"steps": 0, "updates": 0}

    def run(steps: int) -> None:
        goal = done["steps"] + steps
        while done["steps"] < goal:
            rollout = sampler.collect(algo.policy)
            store.add(rollout)
            done["steps"] += rollout.num_steps
            while done["updates"] < int(done["steps"] * per_step):
                algo.update(store.sample())
                done["updates"] += 1

    while done["steps"] < 2_000:
        rollout = sampler.collect(algo.policy)
        store.add(rollout)
        done["steps"] += rollout.num_steps
    done["updates"] = int(done["steps"] * per_step)
    algo.wait_until_ready()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-step", type=float, nargs="+", default=[1.0, 0.125, 0.03125])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--block-s", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(lambda: make(args.serve[0], float(args.serve[1]), args.serve[2]))
        return
    rows: list[dict[str, Any]] = []
    print(f"| environment | updates per step | {' | '.join(MODES)} | best free / best serial |")
    print("|" + "---|" * (len(MODES) + 3))
    for env, env_id in ENVS.items():
        for per_step in args.per_step:
            contenders = [
                Contender(m, __file__, [env_id, str(per_step), m], 2, in_peers_venv=False, multiple=ROLLOUT)
                for m in MODES
            ]
            rates = interleave(contenders, args.blocks, args.block_s)
            median = medians(rates)
            best = {kind: max(v for m, v in median.items() if m.startswith(kind)) for kind in ("serial", "free")}
            cells = " | ".join(f"{median[mode]:.0f}" for mode in MODES)
            print(f"| {env} | {per_step:g} | {cells} | {best['free'] / best['serial']:.2f} |", flush=True)
            rows.append({"env": env, "per_step": per_step, "rates": rates})
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "rows": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
