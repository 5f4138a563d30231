"""kill -9 at random moments of a run with per-episode checkpoints; every --resume must work and leave no trace.

python tests/faults/kill_and_resume.py --kills 200
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from roboloop.core.state import equal
from roboloop.run import checkpoint

FLAGS = (
    "--env gym/Pendulum-v1 --env.max-episode-steps 40 --env.eval-max-episode-steps 40 --env.num-envs 2"
    " --warmup-steps 60 --log-every-steps 50 --trackers --replay.capacity 3000"
    " --algo.hidden 16 16 --algo.batch-size 16 --algo.processes 1"
    " --eval.every-steps 400 --eval.episodes 2 --checkpoint.every-episode --checkpoint.every-steps 0"
).split()
FINISHED = 3
"""Exit code of a resume that finds the run finished: the last kill hit while it drew its curve."""


def start(args: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "roboloop.cli", "train", *args], stdout=subprocess.DEVNULL)


def whole_run(root: Path, steps: int) -> tuple[Path, float]:
    """Train without interruption; return the run and how long it took after its start."""
    flags = [*FLAGS, "--steps", str(steps), "--runs-dir", str(root), "--experiment", "whole"]
    process = start(flags)
    path = root / "whole" / "Pendulum-v1" / "0"
    while not (path / "checkpoints").exists() and process.poll() is None:
        time.sleep(0.01)
    began = time.monotonic()
    if process.wait() != 0:
        raise SystemExit("the uninterrupted run failed")
    return path, time.monotonic() - began


def killed_run(root: Path, steps: int, kills: int, seconds: float, draw: random.Random) -> tuple[Path, int]:
    """Kill a run again and again at random moments, then let it finish; return it and how often a kill hit."""
    path = root / "killed" / "Pendulum-v1" / "0"
    flags = [*FLAGS, "--steps", str(steps), "--runs-dir", str(root), "--experiment", "killed"]
    process, hits = start(flags), 0
    for _ in range(kills):
        _wait_until_training(process, path, while_loading=draw.random() < 0.2)
        # short lives, so that many kills fit into one run
        time.sleep(draw.uniform(0.0, 2.0 * seconds / kills + 0.3))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        hits += 1
        process = start(["--resume", str(path)])
    if process.wait() not in (0, FINISHED):
        raise SystemExit(f"--resume failed after {hits} kills: {path}")
    return path, hits


def _wait_until_training(process: subprocess.Popen[bytes], path: Path, while_loading: bool) -> None:
    """Wait until the process holds the run (its lock names it) or, mostly, until it trains (its status names it)."""
    sign = path / ("lock" if while_loading else "status.json")
    while process.poll() is None:
        # config.yaml is written last: before it there is no run to resume
        if (path / "config.yaml").exists() and str(process.pid) in sign.read_text():
            return
        time.sleep(0.005)


def remains(path: Path) -> dict[str, object]:
    point = next(checkpoint.newest_first(path / "checkpoints", print))
    return {"state": point.state, "metrics": (path / "metrics.jsonl").read_text()}


def run(root: Path, kills: int, steps: int, seed: int) -> int:
    """Return how many kills hit a live run; raise if anything differs at the end."""
    whole, seconds = whole_run(root, steps)
    total, draw = 0, random.Random(seed)
    while total < kills:
        killed, hits = killed_run(root, steps, kills - total, seconds, draw)
        total += hits
        print(f"{total} of {kills} kills done, run finished", flush=True)
        if not equal(remains(whole), remains(killed)):
            raise SystemExit(f"after {hits} kills the run differs: {killed}")
        shutil.rmtree(killed)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="roboloop-kill-"))
    print(f"{run(root, args.kills, args.steps, args.seed)} kills, every resume worked, every end state identical")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
