"""Control steps per second on one core: each legged robot in each engine, plain and in every variant.

A control step is ten substeps of 1/500 s, with observation, reward and noise. Actions hold the joints where they began,
with some unrest, so that robots stand for a while; resets are part of the time. ``engine`` is the share of the time
that the physics engine takes by itself. All are timed in turn, round by round, by the CPU time of this one process, so
that what else the machine does counts little; the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")


class Contender:
    """One environment with its own stream of actions."""

    def __init__(self, env_id: str) -> None:
        import numpy as np

        from roboloop.envs.config import EnvConfig
        from roboloop.envs.registry import make

        self.env_id, self._env = env_id, make(EnvConfig(id=env_id))
        self._rng, self._seed = np.random.default_rng(0), 0
        self._engine_s, self._ended = 0.0, True
        engine = self._env.world._engine  # type: ignore[attr-defined]
        plain = engine.step

        def timed(*args: Any) -> None:
            begin_s = time.process_time()
            plain(*args)
            self._engine_s += time.process_time() - begin_s

        engine.step = timed

    def _joints(self) -> Any:
        return self._env.world.frame().q[-self._env.spec.action_dim :]  # type: ignore[attr-defined]

    def run(self, steps: int) -> tuple[float, float, float]:
        """Return control steps per second, the engine's share, and steps per episode."""
        self._engine_s, episodes, begin_s = 0.0, 0, time.process_time()
        for _ in range(steps):
            if self._ended:
                self._env.reset(self._seed)
                self._held = self._joints()
                self._seed, episodes = self._seed + 1, episodes + 1
            action = self._held - self._joints() + self._rng.normal(0.0, 0.05, len(self._held))
            _, _, terminated, truncated, _ = self._env.step(action)
            self._ended = terminated or truncated
        cpu_s = time.process_time() - begin_s
        return steps / cpu_s, self._engine_s / cpu_s, steps / max(1, episodes)


def main() -> None:
    from roboloop.core.errors import UserError
    from roboloop.envs.legged.suite import ENGINES, ROBOTS, VARIANTS
    from roboloop.track.terminal import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=list(ROBOTS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--variants", nargs="*", default=["", *VARIANTS], help="an empty one is none")
    parser.add_argument("--steps", type=int, default=400, help="control steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    contenders, found = [], []
    for robot in args.robots:
        for engine in args.engines:
            for variant in args.variants:
                try:
                    contenders.append(Contender(f"{robot}/{engine}" + (f"-{variant}" if variant else "")))
                except UserError as error:
                    print(f"left out: {error}")
    rounds: list[list[tuple[float, float, float]]] = [[] for _ in contenders]
    for number in range(args.rounds + 1):
        for contender, kept in zip(contenders, rounds, strict=True):
            result = contender.run(args.steps)
            if number:  # the first round warms up
                kept.append(result)
    for contender, kept in zip(contenders, rounds, strict=True):
        speed, share, length = (statistics.median(column) for column in zip(*kept, strict=True))
        found.append({"env": contender.env_id, "steps_per_s": speed, "engine_share": share, "episode_steps": length})
    rows = [
        (row["env"], f"{row['steps_per_s']:.0f}", f"{row['engine_share']:.0%}", f"{row['episode_steps']:.0f}")
        for row in found
    ]
    print(table([("environment", "control steps/s", "engine", "steps per episode"), *rows]))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
