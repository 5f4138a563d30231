"""Pick-places per second of rope and cloth, and pictures per second, on one core and on several.

A pick-place is one step of the environment: a random place of the object is held and moved at random, with observation
and reward, resets from a warm pool included. ``mj_step alone`` is the limit: as many bare physics steps of the same
model, lying still, as the pick-places took. Pictures are of the scene as it lies, scene update included. All are timed
in turn, round by round, by the CPU time of each process, so that what else the machine does counts little; the median
counts, and processes that ran at the same time are added up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

TASKS = ("rope-straighten", "cloth-spread", "cloth-corner", "cloth-two-hand", "seam-3", "seam-6")
POOL = 8


class Contender:
    """One task with its own stream of actions."""

    def __init__(self, task: str, observe: str) -> None:
        import numpy as np

        from roboloop.envs.registry import make
        from roboloop.envs.soft.config import SoftConfig
        from roboloop.envs.soft.suite import SoftEnvConfig

        cfg = SoftEnvConfig(id=f"soft/{task}", observe=observe, soft=SoftConfig(pick="given", pool=POOL))
        self.name = f"{task}, {observe}"
        self._env, self._rng = make(cfg), np.random.default_rng(0)
        self._world: Any = self._env.world  # type: ignore[attr-defined]
        for seed in range(4 * POOL):  # the pool is made once and not timed
            self._env.reset(seed)
        self._world.picture(64)
        self._seed, self._ended = 0, True

    def run(self, steps: int) -> dict[str, float]:
        """Return what a round found."""
        import mujoco

        physics = self._world._physics
        taken, begin_s = physics.steps, time.process_time()
        for _ in range(steps):
            if self._ended:
                self._env.reset(self._seed)
                self._seed += 1
            action = self._rng.uniform(-1, 1, self._env.spec.action_dim)
            _, _, terminated, truncated, _ = self._env.step(action)
            self._ended = terminated or truncated
        whole_s = time.process_time() - begin_s
        substeps = physics.steps - taken
        begin_s = time.process_time()
        mujoco.mj_step(physics.model, physics.data, nstep=substeps)
        bare_s = time.process_time() - begin_s
        return {
            "pick_places_per_s": steps / whole_s,
            "substeps": substeps / steps,
            "bare_per_s": steps / bare_s,
            "frames_per_s": self._frames(steps),
        }

    def _frames(self, count: int) -> float:
        begin_s = time.process_time()
        for _ in range(count):
            self._world.picture(64)
        return count / (time.process_time() - begin_s)


def work(job: tuple[tuple[str, ...], int, int]) -> list[dict[str, Any]]:
    """Time all contenders in this process."""
    tasks, rounds, steps = job
    contenders = [Contender(task, observe) for task in tasks for observe in ("state", "pixels")]
    kept: list[list[dict[str, float]]] = [[] for _ in contenders]
    for number in range(rounds + 1):
        for contender, found in zip(contenders, kept, strict=True):
            result = contender.run(steps)
            if number:  # the first round warms up
                found.append(result)
    return [
        {"env": contender.name} | {key: statistics.median(row[key] for row in found) for key in found[0]}
        for contender, found in zip(contenders, kept, strict=True)
    ]


def main() -> None:
    from roboloop.track.terminal import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--steps", type=int, default=60, help="pick-places of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="how many work at the same time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows, found = [], []
    for processes in args.processes:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parts = pool.map(work, [(tuple(args.tasks), args.rounds, args.steps)] * processes, chunksize=1)
        for several in zip(*parts, strict=True):
            total = {key: sum(part[key] for part in several) for key in several[0] if key.endswith("per_s")}
            row = {"env": several[0]["env"], "processes": processes, "substeps": several[0]["substeps"]} | total
            found.append(row)
            shown = (f"{row[key]:.0f}" for key in ("pick_places_per_s", "substeps", "bare_per_s", "frames_per_s"))
            rows.append((str(row["env"]), str(processes), *shown))
    heads = ("environment", "processes", "pick-places/s", "substeps each", "mj_step alone/s", "64x64 pictures/s")
    print(table([heads, *rows]))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
