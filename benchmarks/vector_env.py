"""Steps per second of a simulator that steps all columns by one call, beside the same one stepped column by column.

The simulator is the example of ``docs/extending.md`` (``examples/outside/outside/vec.py``): cheap, so that what is
measured is what a step costs around it. Three contenders take turns in one process: ``gymvec`` (one call for all
columns), ``singly`` (as many simulators of one column in an ordinary group), and the limit, the simulator's own step
with ready actions. Rollouts of 32 steps, evenly drawn actions; ``--policy ppo`` acts by PPO's 64x64 net.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "outside"))

ENV, STEPS = "gymvec/outside.vec:Points-v0", 32


def collector(columns: int, is_vector: bool, policy: str) -> Callable[[], int]:
    """Return what collects one rollout and says how many steps it took."""
    from roboloop.algos.policy import UniformPolicy
    from roboloop.algos.ppo.config import PPOConfig
    from roboloop.algos.ppo.ppo import make_ppo
    from roboloop.envs import EnvConfig, make
    from roboloop.sample.buffers import RolloutShape
    from roboloop.sample.group import EnvGroup, plans
    from roboloop.sample.groups import group_maker
    from roboloop.sample.serial import SerialSampler

    cfg = EnvConfig(id=ENV, num_envs=columns)
    spec = make(cfg).spec
    made = group_maker(cfg) if is_vector else EnvGroup
    sampler = SerialSampler(
        lambda e: make(cfg), plans(columns, 1, 0), RolloutShape(spec, STEPS, columns), make_group=made
    )
    ppo = PPOConfig(rollout_steps=STEPS, processes=1)
    acting = UniformPolicy(spec) if policy == "uniform" else make_ppo(ppo, spec, 1, columns, 0).policy
    return lambda: sampler.collect(acting).num_steps


def limit(columns: int) -> Callable[[], int]:
    """Return what steps the simulator alone, resets included."""
    import numpy as np
    from outside.vec import Points

    env = Points(columns)
    env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, columns, 2))

    def steps() -> int:
        for action in actions:
            _, _, _, truncated, _ = env.step(action)
            if truncated.any():
                env.reset(seed=0, options={"reset_mask": truncated})
        return STEPS * columns

    return steps


def rate(collect: Callable[[], int], seconds: float) -> float:
    """Return steps per second over about so many seconds."""
    steps, begin_s = 0, time.monotonic()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        steps += collect()
    return steps / spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="+", default=[16, 256, 1000])
    parser.add_argument("--policy", choices=["uniform", "ppo"], default="uniform")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print(
        "| columns | gymvec | singly | gymvec / singly | simulator alone | gymvec / alone |\n|---|---|---|---|---|---|"
    )
    for columns in args.columns:
        contenders = {
            "gymvec": collector(columns, True, args.policy),
            "singly": collector(columns, False, args.policy),
            "alone": limit(columns),
        }
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for collect in contenders.values():
            collect()
        for _ in range(args.rounds):
            for name, collect in contenders.items():
                rates[name].append(rate(collect, args.seconds))
        median = {name: statistics.median(values) for name, values in rates.items()}
        ratios = [
            statistics.median(a / b for a, b in zip(rates["gymvec"], rates[other], strict=True))
            for other in ("singly", "alone")
        ]
        cells = f"{median['gymvec']:,.0f} | {median['singly']:,.0f} | {ratios[0]:.1f}x"
        print(f"| {columns} | {cells} | {median['alone']:,.0f} | {ratios[1]:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
