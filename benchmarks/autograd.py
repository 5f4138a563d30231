"""Updates per second of the same losses: autograd, and autograd's kernels run again.

Both do whole updates on ready batches, with the same shards, optimiser and memory. Contenders live in processes of
their own and are timed in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from _contender import Contender, Run, interleave, median_ratio, medians, print_table, serve
from sac_update import ACTION_DIM, OBS_DIM, numpy_batches

WORK: dict[str, tuple[dict[str, Any], int]] = {
    "SAC 256x256": ({"hidden": (256, 256)}, 256),
    "SAC 256x256, layer norm": ({"hidden": (256, 256), "layer_norm": True}, 256),
    "SAC 400x400x400": ({"hidden": (400, 400, 400)}, 1280),
    "SAC residual 256x256": ({"hidden": (256, 256), "net": "residual"}, 256),
}
REPLAYED, AUTOGRAD = NAMES = ("replayed", "autograd")


def make(name: str, work: str, threads: int) -> Run:
    """Return updates of one of both."""
    import numpy as np

    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac
    from roboloop.core.types import Batch, EnvSpec

    spec = EnvSpec((OBS_DIM,), np.dtype(np.float32), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, 500)
    settings, rows = WORK[work]
    cfg = SACConfig(batch_size=rows, processes=threads, **settings)
    sac = make_sac(dataclasses.replace(cfg, replay_kernels=name == REPLAYED), spec, 1, seed=0)
    raw = numpy_batches(rows)
    batches = itertools.cycle([Batch(o, a, r, n, (0.99 * (1 - d)).astype("float32")) for o, a, r, n, d in raw])
    sac.update(next(batches))
    sac.wait_until_ready()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            sac.update(batch)

    run(40)  # replayed kernels are compared with autograd's at the 2nd, 4th, 8th, ... update
    return run


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short blocks, only the first row")
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=1.0)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        name, work, threads = args.serve
        return serve(lambda: make(name, work, int(threads)))
    blocks, block_s = (5, 0.3) if args.quick else (args.blocks, args.block_s)
    results = []
    for threads, work in itertools.product(args.threads, [*WORK][:1] if args.quick else WORK):
        made = [Contender(name, __file__, [name, work, str(threads)], threads, False) for name in NAMES]
        rates = interleave(made, blocks, block_s)
        ratio = {name: median_ratio(rates[REPLAYED], values) for name, values in rates.items()}
        results.append({"threads": threads, "work": work, "median": medians(rates), "ratio": ratio, "blocks": rates})
    rows = [
        [str(r["threads"]), r["work"], *(f"{r['median'][n]:.1f}" if n in r["median"] else "" for n in NAMES)]
        + [f"{r['ratio'][n]:.2f}x" if n in r["ratio"] else "" for n in NAMES[1:]]
        for r in results
    ]
    print_table(["threads", "work", *NAMES, *(f"over {name}" for name in NAMES[1:])], rows)
    print("updates/s, median of blocks; ratios are medians over rounds")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))
    return None


if __name__ == "__main__":
    main()
