"""Environment steps per second of whole SAC training, one update per step: ours beside SB3 and sbx, block by block.

All run 256x256 nets, batch 256, one environment in the same process, a replay buffer of a million, from the same
environments (SB3 and sbx get ours through a thin bridge, so a slow simulator is nobody's excuse).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from _contender import PEERS, Contender, Run, interleave, median_ratio, medians, serve

ENVS = {"HalfCheetah-v5": "gym/HalfCheetah-v5", "reach-v3": "metaworld/reach-v3"}
WARMUP = 1_100


def make_ours(env_id: str) -> Run:
    """Our parts in our loop."""
    from roboloop.core.config import override
    from roboloop.run.build import build
    from roboloop.run.config import Experiment
    from roboloop.track.metrics import Meter

    cfg = override(Experiment(), {"env": {"id": env_id}})
    sampler, store, algo, *_ = build(cfg)
    meter = Meter()
    for _ in range(WARMUP):
        store.add(sampler.collect(algo.policy))
    algo.update(store.sample())
    algo.wait_until_ready()

    def run(steps: int) -> None:
        for _ in range(steps):
            store.add(sampler.collect(algo.policy))
            meter.add(algo.update(store.sample()))

    return run


def make_peer(name: str, env_id: str) -> Run:
    """SB3's or sbx's ``learn``."""
    from _gym_bridge import Bridge

    from roboloop.envs.config import EnvConfig

    env = Bridge(EnvConfig(id=env_id), seed=0)
    if name == "sb3":
        from stable_baselines3 import SAC
    else:
        from sbx import SAC
    model = SAC("MlpPolicy", env, learning_starts=100, device="cpu", verbose=0)
    model.learn(WARMUP)

    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return run


def measure(env: str, blocks: int, block_s: float) -> dict[str, Any]:
    names = ["roboloop", *(["sb3", "sbx"] if PEERS.exists() else [])]
    contenders = [Contender(n, __file__, [n, ENVS[env]], 2, in_peers_venv=n != "roboloop") for n in names]
    rates = interleave(contenders, blocks, block_s)
    ratio = {n: median_ratio(rates["roboloop"], rates[n]) for n in names[1:]}
    return {"env": env, "median": medians(rates), "ours_over": ratio, "blocks": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=3.0)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, env_id = args.serve
        serve(lambda: make_ours(env_id) if name == "roboloop" else make_peer(name, env_id))
        return
    results = [measure(env, args.blocks, args.block_s) for env in ENVS]
    for result in results:
        ours = result["median"]["roboloop"]
        rest = ", ".join(
            f"{n} {v:.1f} ({result['ours_over'][n]:.2f}x)" for n, v in result["median"].items() if n != "roboloop"
        )
        print(f"{result['env']}: roboloop {ours:.1f} steps/s, {rest}")
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "results": results}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
