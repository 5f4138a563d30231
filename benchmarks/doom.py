"""Frames per second of training on Doom: ours beside Sample Factory 2.1.1, one after the other, several rounds.

Both: 128x72 RGB, frameskip 4, 2 workers x 8 environments, conv 32-64-128 + 512 + GRU 512, rollout 32, batches of 1024
steps, one epoch, one gradient step per batch. Each system is measured in both of its ways: learning while workers
collect (free-running, asynchronous), and learner and workers in turn (lock step, synchronous). Each round starts the
system afresh, lets it run in, and counts the frames that were learned from in a window of steady state. Memory is the
proportional set size (PSS) of the whole process tree, Doom included. Pure simulation steps the same environments with
random actions in two processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SF_PYTHON = ROOT / ".venv-sf" / "bin" / "python"
TASKS = {"basic": "doom_basic", "health-gathering-supreme": "doom_health_gathering_supreme"}
FRAMESKIP = 4
SHARED_MEMORY = Path("/dev/shm")
CONTENDERS = ("roboloop", "roboloop-free-running", "sample-factory", "sample-factory-sync", "simulation")


def children(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                todo += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def pss_gb(pid: int) -> float:
    """Return the memory of a process tree, shared pages counted once."""
    total = 0
    for child in children(pid):
        try:
            text = Path(f"/proc/{child}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total / 1e6


def watch(
    command: list[str], frames: Callable[[], int], run_in_s: float, window_s: float, log: Path
) -> dict[str, float]:
    """Run a system, and count its frames in a window after it has run in."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"} if "roboloop" in command[0] else dict(os.environ)
    segments = set(SHARED_MEMORY.iterdir())
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, cwd=log.parent, start_new_session=True)
    try:
        while frames() <= 0:
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        time.sleep(run_in_s)
        # counters move in batches: begin and end on a change, so that no part of a batch is cut off
        begin, begin_s = edge(frames, process)
        time.sleep(window_s)
        end, end_s = edge(frames, process)
        return {"fps": (end - begin) / (end_s - begin_s), "pss_gb": pss_gb(process.pid)}
    finally:
        family = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        for pid in family:  # Sample Factory leaves Doom processes behind when it is stopped from outside
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        for segment in set(SHARED_MEMORY.iterdir()) - segments:  # and hundreds of megabytes of shared memory
            segment.unlink(missing_ok=True)


def edge(frames: Callable[[], int], process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for the counter's next change."""
    last = frames()
    while (now := frames()) == last:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended in the middle of its window")
        time.sleep(0.02)
    return now, time.monotonic()


def sample_factory(
    task: str, envs: int, run_in_s: float, window_s: float, directory: Path, options: list[str]
) -> dict[str, float]:
    log = directory / "sf.log"
    command = [str(SF_PYTHON), "-m", "sf_examples.vizdoom.train_vizdoom", f"--env={TASKS[task]}", "--device=cpu",
               f"--train_dir={directory}", "--experiment=sf", "--num_workers=2", f"--num_envs_per_worker={envs // 2}",
               "--train_for_env_steps=1000000000", "--batch_size=1024", "--rollout=32", "--recurrence=32",
               "--num_epochs=1", "--num_batches_per_epoch=1", *options]  # fmt: skip

    def frames() -> int:
        found = re.findall(r"Total num frames: (\d+)", log.read_text() if log.exists() else "")
        return int(found[-1]) if found else 0

    return watch(command, frames, run_in_s, window_s, log)


def roboloop(
    task: str, envs: int, run_in_s: float, window_s: float, directory: Path, options: list[str]
) -> dict[str, float]:
    command = [str(Path(sys.executable).parent / "roboloop"), "train", "--env", f"doom/{task}", "--algo", "ppo",
               "--runs-dir", str(directory), "--experiment", "ours", "--env.num-envs", str(envs),
               "--env.action-repeat", str(FRAMESKIP),
               "--steps", "1000000000", "--eval.every-steps", "0", "--checkpoint.every-steps", "0", "--trackers",
               "--log-every-steps", "1024", "--warmup-steps", "0",
               "--algo.core", "gru", "--algo.rollout-steps", "32", "--algo.batch-envs", "32", "--algo.epochs", "1",
               "--algo.minibatches", "1", *options]  # fmt: skip
    metrics = directory / "ours" / task / "0" / "metrics.jsonl"

    def frames() -> int:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return int(json.loads(lines[-1])["step"]) * FRAMESKIP if lines else 0

    return watch(command, frames, run_in_s, window_s, directory / "ours.log")


def simulation(task: str, envs: int, window_s: float) -> dict[str, float]:
    """Two processes that only step: what training would reach if nets cost nothing."""
    code = f"""
import time, numpy as np
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
envs = [make(EnvConfig(id="doom/{task}", action_repeat={FRAMESKIP})) for _ in range({envs // 2})]
rng, high = np.random.default_rng(0), np.array(envs[0].spec.action_high)
for i, env in enumerate(envs):
    env.reset(i)
def steps(seconds):
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for i, env in enumerate(envs):
            _, _, a, b, _ = env.step(np.floor(rng.random(len(high)) * (high + 1)))
            count += 1
            if a or b:
                env.reset(count)
    return count / seconds
steps(2.0)
print(steps({window_s}))
"""
    pair = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return {"fps": FRAMESKIP * sum(float(process.communicate()[0].split()[-1]) for process in pair)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="basic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-s", type=float, default=40.0)
    parser.add_argument("--run-in-s", type=float, default=15.0)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--only", choices=CONTENDERS, action="append")
    parser.add_argument("--out", type=Path)
    args, options = parser.parse_known_args()
    sizes = args.task, args.envs, args.run_in_s, args.window_s
    workers = ["--sample.workers", "2", *options]
    contenders: dict[str, Callable[[Path], dict[str, float]]] = {
        "roboloop": lambda d: roboloop(*sizes, d, ["--sample.groups", "2", *workers]),
        "roboloop-free-running": lambda d: roboloop(
            *sizes, d, ["--sample.groups", "2", "--sample.free-running", "--algo.vtrace", *workers]
        ),
        "sample-factory": lambda d: sample_factory(*sizes, d, []),
        "sample-factory-sync": lambda d: sample_factory(*sizes, d, ["--async_rl=False"]),
        "simulation": lambda d: simulation(args.task, args.envs, args.window_s / 4),
    }
    if not SF_PYTHON.exists():
        print("no .venv-sf: scripts/setup_peers.sh makes it", file=sys.stderr)
        contenders = {name: run for name, run in contenders.items() if not name.startswith("sample-factory")}
    rounds: dict[str, list[dict[str, float]]] = {n: [] for n in contenders if not args.only or n in args.only}
    for number in range(args.rounds):
        for name in rounds:
            directory = Path(tempfile.mkdtemp(prefix="doom-bench-"))
            rounds[name].append(contenders[name](directory))
            shutil.rmtree(directory, ignore_errors=True)
            print(f"round {number + 1} {name}: {rounds[name][-1]}", flush=True)
    report(args.task, rounds, args.out)


def report(task: str, rounds: dict[str, list[dict[str, float]]], out: Path | None) -> None:
    """Print medians and ratios."""
    fps = {n: statistics.median(r["fps"] for r in rows) for n, rows in rounds.items()}
    summary: dict[str, Any] = {"task": task, "fps": fps, "rounds": rounds}
    for name, value in fps.items():
        memory = [r["pss_gb"] for r in rounds[name] if "pss_gb" in r]
        line = f"{name}: {value:.0f} frames/s" + (f", {max(memory):.2f} GB" if memory else "")
        if "sample-factory" in fps and name.startswith("roboloop"):
            pairs = zip(rounds[name], rounds["sample-factory"], strict=True)
            line += f", {statistics.median(a['fps'] / b['fps'] for a, b in pairs):.2f}x Sample Factory"
        if "simulation" in fps and name != "simulation":
            line += f", {value / fps['simulation']:.0%} of pure simulation"
        print(f"{task}: {line}")
    if out:
        out.write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    sys.exit(main())
