"""Meta-World on one core: steps per second and milliseconds per reset of the original, of ours, and of EnvPool's port.

Contenders live in this process, which is bound to one core, and take turns: a round times one block of steps of each,
from the same seed and with the same actions. Steps per second are of CPU time, medians over rounds; the first ratio is
the median over rounds of the original's time over the other's in the same round. Blocks are played several times over,
with the same work in the same step; the second ratio is of the sums of each step's quickest time, that is, of what a
machine without other work would need.

``physics alone`` is the original's five substeps and forward pass and nothing else: the bound of an environment that
repeats all of the original's physics. EnvPool steps a batch of 8 on one thread. ``--actions expert`` plays what the
scripted experts do, recorded beforehand: hands that touch things, so physics costs more; EnvPool draws other goals,
whose objects such hands would miss, and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.envs.headless import prefer_egl
from roboloop.envs.metaworld.suite import MT10

ENVPOOL_BATCH = 8


class Times(NamedTuple):
    """What a block took."""

    cpu_s: float
    steps_s: list[float]
    """Of each step, by the wall clock."""


Block = Callable[[int], Times]
"""Plays a block from a seed."""


def original(task: str) -> Any:
    """Return plain Meta-World with the goal shown and drawn from the seed."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env: Any = ALL_V3_ENVIRONMENTS[task]()
    env._partially_observable = False
    del env.sawyer_observation_space
    env._set_task_called = env.seeded_rand_vec = True
    return env


def start_original(env: Any, seed: int) -> Any:
    """Draw a goal, freeze it, and return the first observation."""
    env.seed(seed)
    env._freeze_rand_vec = False
    env.reset()
    env._freeze_rand_vec = True
    return env.reset()[0]


def recorded(task: str, seed: int, steps: int, kind: str) -> Any:
    """Return the actions of a block."""
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.uniform(-1, 1, (steps, 4)).astype(np.float32)
    from roboloop.envs import EnvConfig, make, scripted_policy

    env, expert, actions = make(EnvConfig(id=f"metaworld/{task}")), scripted_policy(task), []
    obs, memory = env.reset(seed), np.zeros((1, 0), np.float32)
    for _ in range(steps):
        actions.append(expert.act(obs[None], memory, False, rng).action[0])
        obs = env.step(actions[-1])[0]
    return np.stack(actions)


def timed(step: Callable[[Any], Any], actions: Any) -> Times:
    """Take the steps, timing each."""
    steps_s, clock = [], time.perf_counter
    cpu_s = time.process_time()
    for action in actions:
        start_s = clock()
        step(action)
        steps_s.append(clock() - start_s)
    return Times(time.process_time() - cpu_s, steps_s)


def commands(env: Any, actions: Any) -> Any:
    """Return where each action puts the hand's target, and what it tells the two fingers."""
    place, rows = env.data.mocap_pos[0].copy(), []
    for action in actions:
        place = np.clip(place + action[:3] * env.action_scale, env.mocap_low, env.mocap_high)
        rows.append([*place, action[3], -action[3]])
    return np.array(rows)


def contenders(task: str, actions: dict[int, Any]) -> dict[str, Block]:
    """Return who plays blocks of steps."""
    import mujoco

    from roboloop.envs import EnvConfig, make

    plain, bare, ours = original(task), original(task), make(EnvConfig(id=f"metaworld/{task}"))

    def play_plain(seed: int) -> Times:
        start_original(plain, seed)
        return timed(plain.step, actions[seed])

    def play_ours(seed: int) -> Times:
        ours.reset(seed)
        return timed(ours.step, actions[seed])

    def play_physics(seed: int) -> Times:
        start_original(bare, seed)
        model, data, command = bare.model, bare.data, bare.data.ctrl

        def simulate(action: Any) -> None:
            data.mocap_pos[0], command[:] = action[:3], action[3:]
            mujoco.mj_step(model, data, nstep=5)
            mujoco.mj_forward(model, data)

        return timed(simulate, commands(bare, actions[seed]))

    return {"original": play_plain, "roboloop": play_ours, "physics": play_physics}


def envpool(task: str, actions: dict[int, Any]) -> dict[str, Block]:
    """Return EnvPool's port, if it is installed."""
    try:
        from roboloop.envs.envpool.world import pool, their_id
    except ModuleNotFoundError:
        return {}
    envs = pool(their_id(f"metaworld/{task}"), ENVPOOL_BATCH, seed=0)

    def play(seed: int) -> Times:
        envs.reset()
        batches = np.repeat(actions[seed][:, None], ENVPOOL_BATCH, axis=1)
        took = timed(envs.step, batches)
        return Times(took.cpu_s / ENVPOOL_BATCH, [s / ENVPOOL_BATCH for s in took.steps_s])

    return {"envpool": play}


def resets(task: str) -> dict[str, Block]:
    """Return who begins episodes: Meta-World its own ``reset``, we the one of a seed."""
    from roboloop.envs import EnvConfig, make

    plain, ours = original(task), make(EnvConfig(id=f"metaworld/{task}"))
    start_original(plain, 0)
    return {
        "original": lambda seed: timed(lambda _: plain.reset(), [0]),
        "roboloop": lambda seed: timed(ours.reset, [seed]),
    }


def take_turns(blocks: dict[str, Block], seeds: list[int], repeats: int) -> dict[str, list[Times]]:
    """Let all contenders play all seeds in turn, several times over; the first round is left out."""
    times: dict[str, list[Times]] = {name: [] for name in blocks}
    for seed in [seeds[0], *seeds * repeats]:
        for name, play in blocks.items():
            times[name].append(play(seed))
    return {name: rounds[1:] for name, rounds in times.items()}


def median_ratio(a: list[Times], b: list[Times]) -> float:
    """Return how many times longer the first took, by rounds."""
    return statistics.median(x.cpu_s / y.cpu_s for x, y in zip(a, b, strict=True))


def undisturbed_s(rounds: list[Times], seeds: int) -> float:
    """Return the time of all seeds' blocks if every step had been as quick as its quickest repeat."""
    steps = np.array([r.steps_s for r in rounds])
    return float(steps.reshape(-1, seeds, steps.shape[1]).min(0).sum())


def measure(task: str, seeds: int, repeats: int, steps: int, kind: str) -> dict[str, Any]:
    """Return medians and ratios of one task."""
    chosen = list(range(1, seeds + 1))
    actions = {seed: recorded(task, seed, steps, kind) for seed in chosen}
    playing = contenders(task, actions) | (envpool(task, actions) if kind == "random" else {})
    times = take_turns(playing, chosen, repeats)
    reset = take_turns(resets(task), chosen, repeats)
    floor_s = {name: undisturbed_s(rounds, seeds) for name, rounds in times.items()}
    return {
        "task": task,
        "steps_per_s": {name: steps / statistics.median(r.cpu_s for r in rounds) for name, rounds in times.items()},
        "ratio": {name: median_ratio(times["original"], rounds) for name, rounds in times.items()},
        "undisturbed": {name: floor_s["original"] / seconds for name, seconds in floor_s.items()},
        "reset_ms": {name: 1e3 * statistics.median(r.cpu_s for r in rounds) for name, rounds in reset.items()},
        "load": os.getloadavg()[0],
    }


def row(result: dict[str, Any]) -> str:
    """Return one line of the table."""
    speed, ratio, quiet, reset = (result[key] for key in ("steps_per_s", "ratio", "undisturbed", "reset_ms"))
    cells = [f"{speed['original']:.0f}"]
    cells += [
        f"{speed[name]:.0f} ({ratio[name]:.2f}x, {quiet[name]:.2f}x)" if name in speed else "–"
        for name in ("roboloop", "envpool", "physics")
    ]
    cells += [f"{reset['original']:.1f} ms", f"{reset['roboloop']:.2f} ms", f"{result['load']:.1f}"]
    return f"| {result['task']} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(MT10))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--actions", choices=["random", "expert"], default="random")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prefer_egl()
    warnings.filterwarnings("ignore", "Constant")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = []
    print(f"{args.actions} actions: {args.seeds} seeds of {args.steps} steps, {args.repeats} times\n")
    print(
        "| task | original, steps/s | roboloop | envpool | physics alone | reset, original | reset, roboloop | load |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for task in args.tasks:
        results.append(measure(task, args.seeds, args.repeats, args.steps, args.actions))
        print(row(results[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
