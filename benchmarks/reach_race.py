"""Wall time and steps to 95 % success on Meta-World reach-v3: ours (recipe `reach`) and SB3's SAC, one after another.

SB3 runs twice: as it comes (one environment, the suite's horizon, default hyper-parameters, one update per step) and
with what of our recipe it can express (8 environments, horizon 150, 4 updates per 8 steps, discount and learning rates;
neither n-step returns nor normalised observations). It gets our fast environment and our evaluator, and each contender
has the machine to itself. The runs are ordinary run directories: `roboloop plot` overlays them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from _contender import PEERS, ROOT

GOAL = 0.95
EVAL_EVERY, EVAL_EPISODES = 5_000, 40
OUR_SETTINGS = {
    "gamma": 0.9,
    "learning_rate": 1e-3,
    "ent_coef": "auto_0.1",
    "learning_starts": 2000,
    "train_freq": 1,
    "gradient_steps": 4,
}
SB3 = {
    "sb3-default": [],
    "sb3-our-settings": ["--num-envs=8", "--horizon=150", f"--settings={json.dumps(OUR_SETTINGS)}"],
}


def command(name: str, seed: int, path: Path, max_s: float) -> list[str]:
    """Return the command that trains one contender."""
    if name == "roboloop":
        flags = [f"--seed={seed}", f"--runs-dir={path.parents[2]}", "--experiment=roboloop"]
        return [sys.executable, "-m", "roboloop.cli", "train", "reach", *flags]
    common = [f"--seed={seed}", f"--eval-every={EVAL_EVERY}", f"--eval-episodes={EVAL_EPISODES}"]
    script = str(ROOT / "benchmarks" / "sb3_baseline.py")
    limits = [f"--stop-success={GOAL}", f"--max-s={max_s}"]
    return [str(PEERS), script, "metaworld/reach-v3", str(path), *common, *limits, *SB3[name]]


def reached(path: Path) -> dict[str, float | None]:
    """Return steps and training seconds at which success first reached the goal."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (path / "timing.jsonl").read_text().splitlines()]
    best = max(r.get("eval/success") or 0 for r in rows)
    step = next((r["step"] for r in rows if (r.get("eval/success") or 0) >= GOAL), None)
    if step is None:
        return {"steps": None, "train_s": None, "best": best, "given_s": times[-1]["wall_s"]}
    timing = next(t for t in times if t["step"] >= step)
    train_s = timing["train_s"] if "train_s" in timing else timing["collect_s"] + timing["update_s"]
    return {"steps": step, "train_s": train_s, "best": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/race"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=["roboloop", *SB3], default=["roboloop", *SB3])
    parser.add_argument("--max-s", type=float, default=1200.0, help="training seconds that SB3 is given")
    args = parser.parse_args()
    for name in args.only:
        for seed in args.seeds:
            path = args.runs / name / "reach-v3" / str(seed)
            if not path.exists():
                subprocess.run(command(name, seed, path, args.max_s), check=True, env=dict(os.environ))
            print(f"{name} seed {seed}: {reached(path)}", flush=True)


if __name__ == "__main__":
    main()
