"""How long a policy takes from one observation to one action, ours beside its ONNX export, and what learning takes.

Acting is timed call by call on one row, without exploration, from raw observation to bounded action; our PPO also says
value and log-probability, the export does not. Policies with heads choose one by the task in the observation (their
updates: ``bench multitask``). Both take turns in blocks of calls, so that they see the same machine;
every case has a process of its own, with one thread on one core. ``weights`` is what the policy carries, ``memory`` by
how much the process grew when it was built and called. For SAC also one whole update on a ready batch, by
``--processes`` processes and not tied to a core, and the replay ring of a million transitions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roboloop.track.terminal import LiveLine

if TYPE_CHECKING:
    from roboloop.core.types import EnvSpec

OBS_DIMS = (6, 39, 200, 1000)
WIDTHS = {"256x256": (256, 256), "400x400x400": (400, 400, 400)}
ACTION_DIM, BATCH, CAPACITY, PICTURE = 4, 256, 1_000_000, (3, 72, 128)
SAC_CASES = {f"sac {width} obs {dim}": (width, dim) for width in WIDTHS for dim in OBS_DIMS}
PPO_CASES: dict[str, dict[str, Any]] = {
    "ppo 64x64 obs 39": {},
    "ppo gru 512 obs 39": {"core": "gru"},
    f"ppo pixels {PICTURE[2]}x{PICTURE[1]}": {},
}
HEAD_CASES = {f"sac 256x256, {k} heads, obs {39 + k}": k for k in (3, 10, 50)}
CASES = (*SAC_CASES, *HEAD_CASES, *PPO_CASES)
BLOCK = 20
"""Calls of one side before the other has its turn."""


# ---- one case, in a process of its own ----


def resident_mb() -> float:
    """Return the memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def spec_of(case: str) -> EnvSpec:
    """Return the environment that a case stands for."""
    import numpy as np

    from roboloop.core.types import EnvSpec

    bounds = (-2.0,) * ACTION_DIM, (2.0,) * ACTION_DIM
    if "pixels" in case:
        return EnvSpec(PICTURE, np.dtype(np.uint8), *bounds, 500)
    tasks = tuple(f"task{k}" for k in range(HEAD_CASES.get(case, 0)))
    shape = (int(case.rsplit(" ", 1)[1]),)
    return EnvSpec(shape, np.dtype(np.float32), *bounds, 500, tasks=tasks, one_task_each=bool(tasks))


def make_policy(case: str, spec: EnvSpec) -> Any:
    """Return a policy with its first weights."""
    from roboloop.algos.mtsac.config import MTSACConfig
    from roboloop.algos.mtsac.mtsac import make_mtsac
    from roboloop.algos.ppo.config import PPOConfig
    from roboloop.algos.ppo.ppo import make_ppo
    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac

    if case in HEAD_CASES:
        rows = 2 * HEAD_CASES[case]
        heads = MTSACConfig(hidden=(256, 256), head_hidden=(), batch_size=rows, normalize_obs=True, processes=1)
        return make_mtsac(heads, spec, frame_stack=1, seed=0).policy.snapshot()
    if case in SAC_CASES:
        cfg = SACConfig(hidden=WIDTHS[SAC_CASES[case][0]], batch_size=2, normalize_obs=True, processes=1)
        sac = make_sac(cfg, spec, frame_stack=1, seed=0)
        return sac.policy.snapshot()
    options = {"normalize_obs": True, "processes": 1, "rollout_steps": 1, "minibatches": 1, "shards": 1}
    return make_ppo(PPOConfig(**PPO_CASES[case], **options), spec, 1, 1, seed=0).policy.snapshot()


def spread(seconds: list[float]) -> dict[str, float]:
    """Return percentiles in microseconds."""
    import numpy as np

    p50, p95, p99, most = (np.percentile(seconds, [50, 95, 99, 100]) * 1e6).tolist()
    return {"p50_us": p50, "p95_us": p95, "p99_us": p99, "max_us": most}


def timed(call: Callable[[], Any], calls: int) -> list[float]:
    """Return the seconds of each call."""
    seconds = []
    for _ in range(calls):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return seconds


def acting(case: str, calls: int, warmup: int) -> dict[str, dict[str, float]]:
    """Time one-row calls of ours and of the export in turn."""
    import numpy as np
    import onnxruntime  # noqa: F401 - before memory is measured
    import torch

    from roboloop.algos.graph import onnx_model
    from roboloop.run.export import OnnxPolicy

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    spec, rng = spec_of(case), np.random.default_rng(0)
    obs = (rng.random((1, *spec.obs_shape)) * 100).astype(spec.obs_dtype)
    policy = make_policy(case, spec)
    makers: dict[str, Callable[[], Any]] = {"roboloop": policy.snapshot}
    num_bytes = {"roboloop": 4 * policy.num_weights}
    if case not in HEAD_CASES:  # which cannot be exported
        model = onnx_model(policy)
        makers["onnx"], num_bytes["onnx"] = lambda: OnnxPolicy(model), len(model)
    sides: dict[str, Callable[[], Any]] = {}
    found: dict[str, dict[str, float]] = {}
    for name, make in makers.items():
        before_mb = resident_mb()
        made = make()
        memory = np.zeros((1, made.memory_size), np.float32)
        sides[name] = lambda made=made, memory=memory: made.act(obs, memory, False, rng)
        timed(sides[name], warmup)
        found[name] = {"weights_mb": num_bytes[name] / 1e6, "memory_mb": resident_mb() - before_mb}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(max(1, calls // BLOCK)):
        for name, call in sides.items():
            seconds[name] += timed(call, BLOCK)
    return {name: {**found[name], **spread(seconds[name])} for name in sides}


def learning(case: str, updates: int, processes: int) -> dict[str, float]:
    """Time whole SAC updates, and say what a million transitions take."""
    import numpy as np

    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac
    from roboloop.core.types import Batch
    from roboloop.run.plan import replay_bytes

    spec, rng, before_mb = spec_of(case), np.random.default_rng(0), resident_mb()
    cfg = SACConfig(hidden=WIDTHS[SAC_CASES[case][0]], batch_size=BATCH, normalize_obs=True, processes=processes)
    sac = make_sac(cfg, spec, frame_stack=1, seed=0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    obs, next_obs = normal(BATCH, *spec.obs_shape), normal(BATCH, *spec.obs_shape)
    batch = Batch(obs, np.tanh(normal(BATCH, ACTION_DIM)), normal(BATCH), next_obs, np.full(BATCH, 0.99, np.float32))
    sac.update(batch)
    sac.wait_until_ready()
    timed(lambda: sac.update(batch), 3)
    found = spread(timed(lambda: sac.update(batch), updates))
    memory_mb = resident_mb() - before_mb
    sac.close()
    return {**found, "memory_mb": memory_mb, "replay_mb": replay_bytes(CAPACITY, spec) / 1e6}


# ---- the benchmark ----


def in_a_process(what: str, case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one case by itself."""
    command = [
        sys.executable,
        __file__,
        "--serve",
        what,
        case,
        "--calls",
        str(args.calls),
        "--warmup",
        str(args.warmup),
    ]
    command += ["--updates", str(args.updates), "--processes", str(args.processes)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{what} {case} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(title: list[str], rows: list[list[str]]) -> None:
    """Print one table."""
    print("| " + " | ".join(title) + " |\n" + "|---" * len(title) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def numbers(found: dict[str, float]) -> list[str]:
    return [f"{found[name]:.0f}" for name in ("p50_us", "p95_us", "p99_us", "max_us")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="timed calls per case and side")
    parser.add_argument("--warmup", type=int, default=500, help="calls before")
    parser.add_argument("--updates", type=int, default=500, help="timed SAC updates per case; 0 leaves them out")
    parser.add_argument("--processes", type=int, default=2, help="processes of the SAC learner")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        what, case = args.serve
        found = acting(case, args.calls, args.warmup) if what == "act" else None
        print(json.dumps(found or learning(case, args.updates, args.processes)))
        return
    jobs = [("act", case) for case in args.only]
    jobs += [("learn", case) for case in args.only if case in SAC_CASES and args.updates]
    line = LiveLine()
    act: dict[str, dict[str, dict[str, float]]] = {}
    learn: dict[str, dict[str, float]] = {}
    for done, (what, case) in enumerate(jobs):
        line.show(f"{done}/{len(jobs)} cases, now {what} {case}")
        (act if what == "act" else learn)[case] = in_a_process(what, case, args)
    line.clear()
    show(
        ["acting on one row", "by", "p50 us", "p95", "p99", "max", "weights MB", "memory MB"],
        [
            [case, side, *numbers(found), f"{found['weights_mb']:.2f}", f"{found['memory_mb']:.1f}"]
            for case, sides in act.items()
            for side, found in sides.items()
        ],
    )
    if learn:
        print()
        show(
            [f"update, batch {BATCH}", "p50 us", "p95", "p99", "max", "memory MB", "replay MB"],
            [[c, *numbers(f), f"{f['memory_mb']:.0f}", f"{f['replay_mb']:.0f}"] for c, f in learn.items()],
        )
    if args.out:
        args.out.write_text(json.dumps({"cpus": os.cpu_count(), "acting": act, "learning": learn}, indent=1))


if __name__ == "__main__":
    main()
