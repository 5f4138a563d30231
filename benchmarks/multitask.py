"""Multi-task SAC updates per second against the number of tasks: what K heads cost beside one.

Every contender does full updates (critics, actor, temperatures, targets) on ready batches of equally many rows in all,
so that only what belongs to a task is more: heads, temperatures, the task's columns. One task is plain SAC of the same
depth. With ``--per-task`` a batch has so many rows of each task instead, as multi-task training does. Contenders live
in processes of their own that are timed in turn, so all see the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

from _contender import Contender, Run, interleave, median_ratio, medians, print_table, serve

OBS_DIM, ACTION_DIM, NUM_BATCHES = 39, 4, 4
TASKS = (1, 3, 6, 10, 50)
NETS = ("heads", "soft", "plain")
ROWS, SHARDS = 1200, 2
"""Rows split into shards of equally many for each of TASKS."""
HIDDEN, HEAD_HIDDEN = (256, 256), (256,)


def make_updates(net: str, num_tasks: int, rows: int, threads: int) -> Run:
    """Return updates of one network with one process per thread."""
    import numpy as np

    from roboloop.algos.mtsac.config import MTSACConfig
    from roboloop.algos.mtsac.mtsac import make_mtsac
    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac
    from roboloop.core.types import Batch, EnvSpec

    is_set = num_tasks > 1
    obs_dim = OBS_DIM + num_tasks * is_set
    spec = EnvSpec(
        (obs_dim,), np.dtype(np.float32), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, 500,
        tasks=tuple(f"task{k}" for k in range(num_tasks)) if is_set else (), one_task_each=is_set,
    )  # fmt: skip
    if is_set:
        hidden = (*HIDDEN, *HEAD_HIDDEN) if net == "plain" else HIDDEN
        several = MTSACConfig(
            net=net,  # type: ignore[arg-type]
            hidden=hidden, head_hidden=HEAD_HIDDEN, batch_size=rows, shards=SHARDS, processes=threads,
        )  # fmt: skip
        sac = make_mtsac(several, spec, frame_stack=1, seed=0)
    else:
        cfg = SACConfig(hidden=(*HIDDEN, *HEAD_HIDDEN), batch_size=rows, shards=SHARDS, processes=threads)
        sac = make_sac(cfg, spec, frame_stack=1, seed=0)
    rng = np.random.default_rng(0)

    def seen() -> Any:
        obs = rng.standard_normal((rows, obs_dim), dtype=np.float32)
        if is_set:
            obs[:, OBS_DIM:] = np.repeat(np.eye(num_tasks), rows // num_tasks, axis=0)
        return obs

    def batch() -> Batch:
        action = np.tanh(rng.standard_normal((rows, ACTION_DIM), dtype=np.float32))
        return Batch(seen(), action, rng.standard_normal(rows, np.float32), seen(), np.full(rows, 0.99, np.float32))

    batches = itertools.cycle([batch() for _ in range(NUM_BATCHES)])
    sac.update(next(batches))
    sac.wait_until_ready()

    def run(updates: int) -> None:
        for each in itertools.islice(batches, updates):
            sac.update(each)

    return run


def measure(net: str, tasks: list[int], per_task: int | None, threads: int, blocks: int, block_s: float) -> Any:
    """Time all numbers of tasks in turn."""
    rows = {k: ROWS if per_task is None else per_task * k for k in tasks}
    work = {k: [net, str(k), str(rows[k]), str(threads)] for k in tasks}
    rates = interleave([Contender(str(k), __file__, work[k], threads, False) for k in tasks], blocks, block_s)
    cost = {k: median_ratio(rates[str(tasks[0])], rates[str(k)]) for k in tasks}
    median = {int(k): value for k, value in medians(rates).items()}
    return {"net": net, "threads": threads, "rows": rows, "updates_per_s": median, "cost": cost, "blocks": rates}


def show(results: list[Any]) -> None:
    """Print one table: updates per second, and in brackets the cost of an update in those of the first column."""
    tasks = list(results[0]["rows"])
    header = ["threads", "net", *(f"K={k} ({results[0]['rows'][k]} rows)" for k in tasks)]
    lines = [
        [str(r["threads"]), r["net"], *(f"{r['updates_per_s'][k]:.1f} ({r['cost'][k]:.2f}x)" for k in tasks)]
        for r in results
    ]
    print_table(header, lines)
    print("updates/s, median of blocks; in brackets: time of an update, in updates of the first column")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short blocks, only heads")
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--tasks", nargs="+", type=int, default=list(TASKS))
    parser.add_argument("--per-task", type=int, help="rows of each task in a batch, instead of as many in all")
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=1.5)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        net, *numbers = args.serve
        tasks, rows, threads = map(int, numbers)
        return serve(lambda: make_updates(net, tasks, rows, threads))
    for k in args.tasks:
        rows = ROWS if args.per_task is None else args.per_task * k
        if k < 1 or rows % (SHARDS * k):
            parser.error(
                f"{rows} rows do not split into {SHARDS} shards of {k} tasks: choose other --tasks, --per-task"
            )
    if args.quick:
        args.nets, args.blocks, args.block_s = ["heads"], 5, 0.5
    results = []
    for threads, net in itertools.product(args.threads, args.nets):
        results.append(measure(net, args.tasks, args.per_task, threads, args.blocks, args.block_s))
        show(results[-1:])
    show(results)
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "results": results}, indent=1))
    return None


if __name__ == "__main__":
    main()
