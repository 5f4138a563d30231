"""Whether each algorithm still learns as it did: short runs of one task each, beside all results kept so far.

    roboloop bench canaries                      # minutes; prints each result beside the band of earlier ones
    roboloop bench canaries --keep               # and adds them to docs/results/data/canaries.jsonl

A change that moves what is learned shows on the day it lands: run this before and after. A result is the mean of the
last two evaluations during training, success where it is known and return elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).resolve().parents[1] / "docs" / "results" / "data" / "canaries.jsonl"
ROOT = Path(__file__).resolve().parents[1]
POINT = ["--env", "tiny/point", "--steps", "3000", "--warmup-steps", "300", "--algo.hidden", "32", "32",
         "--algo.batch-size", "64", "--eval.every-steps", "1000"]  # fmt: skip
CANARIES: dict[str, list[str]] = {
    "sac, pendulum": ["--env", "gym/Pendulum-v1", "--steps", "8000", "--warmup-steps", "1000",
                      "--eval.every-steps", "2000"],
    "sac, residual net, point": [*POINT, "--algo.net", "residual"],
    "mtsac, point and mirror": [*POINT, "--algo", "mtsac", "--env", "tiny/point+mirror", "--env.num-envs", "2",
                                "--steps", "6000", "--algo.head-hidden", "32", "--eval.every-steps", "2000"],
    "ppo, cartpole": ["cartpole", "--steps", "40000", "--eval.every-steps", "10000"],
    "ppo, halfcheetah": ["halfcheetah-ppo", "--steps", "200000", "--eval.every-steps", "50000"],
    "ppo, recall": ["recall", "--eval.every-steps", "10000"],
    "bc, pendulum": ["bc", "--dataset", "DATASET", "--steps", "3000", "--eval.every-steps", "1000"],
    "dt, pendulum": ["dt", "--dataset", "DATASET", "--target", "-150", "--steps", "2000", "--eval.every-steps", "1000"],
}  # fmt: skip
"""Name -> arguments of ``roboloop train``."""
SPREAD = 3.0
"""A result is told where it is further from the mean of earlier ones than so many of their deviations."""
LEAST_SPREAD = 0.05
"""Of the mean: what counts as a deviation where earlier results are closer to each other."""


def roboloop(*args: str) -> None:
    """Run a command; what it says is shown only where it fails."""
    done = subprocess.run([sys.executable, "-m", "roboloop.cli", *args], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"roboloop {' '.join(args)}:\n{done.stderr[-2000:]}")


def score(run: Path) -> float:
    """Return the mean of a run's last two evaluations."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if "eval/return" in row]
    found = [row["eval/return"] if row["eval/success"] is None else row["eval/success"] for row in evaluated]
    return sum(found[-2:]) / len(found[-2:])


def learn(name: str, seed: int, folder: Path) -> float:
    """Train a canary and return its score; those of datasets learn from the first one's episodes."""
    args = list(CANARIES[name])
    if "DATASET" in args:
        args[args.index("DATASET")] = str(dataset(seed, folder))
    runs = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    roboloop("train", *args, "--seed", str(seed), "--runs-dir", str(runs), "--eval.episodes", "20")
    (metrics,) = runs.glob("*/*/*/metrics.jsonl")
    return score(metrics.parent)


def dataset(seed: int, folder: Path) -> Path:
    """Return recorded episodes of a SAC that has learned the pendulum."""
    out = folder / f"pendulum-{seed}"
    if not out.exists():
        runs = folder / f"teacher-{seed}"
        roboloop("train", *CANARIES["sac, pendulum"], "--seed", str(seed), "--runs-dir", str(runs))
        (metrics,) = runs.glob("*/*/*/metrics.jsonl")
        roboloop("record", str(metrics.parent), "--episodes", "60", "--out", str(out))
    return out


def verdict(value: float, earlier: list[float]) -> str:
    """Say how a result stands to earlier ones."""
    if not earlier:
        return "the first of its kind"
    mean = sum(earlier) / len(earlier)
    deviation = (sum((each - mean) ** 2 for each in earlier) / len(earlier)) ** 0.5
    band = SPREAD * max(deviation, LEAST_SPREAD * abs(mean))
    place = "as before" if abs(value - mean) <= band else "NOT AS BEFORE"
    return f"{place}: {mean:.3g} +- {band:.2g} of {len(earlier)}"


def main(argv: list[str] | None = None) -> None:
    """Run the canaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CANARIES, default=[*CANARIES], metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--keep", action="store_true", help="add the results to the history")
    args = parser.parse_args(argv)
    known: list[dict[str, Any]] = []
    if HISTORY.exists():
        known = [json.loads(line) for line in HISTORY.read_text().splitlines()]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    about = {"date": str(datetime.date.today()), "commit": commit.stdout.strip(), "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            for seed in args.seeds:
                value = learn(name, seed, Path(folder))
                earlier = [row["score"] for row in known if row["name"] == name]
                print(f"{name}, seed {seed}: {value:.4g} ({verdict(value, earlier)})", flush=True)
                if args.keep:
                    row = {**about, "name": name, "seed": seed, "score": round(value, 4)}
                    with HISTORY.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
