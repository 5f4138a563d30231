"""Wall time and steps to 95 % success on Meta-World reach-v3: ours (recipe `reach`) and SB3's SAC, one after another.

SB3 runs twice: as it comes (one environment, the suite's horizon, default hyper-parameters, one update per step) and
with our recipe (8 environments, horizon 100, 4 updates per 8 steps, learning rates of 1e-3). It gets our fast
environment, and both are judged by the same evaluator on the same goals; evaluation is not counted as training time.
Each contender has the machine to itself. The runs are ordinary run directories: `roboloop plot` overlays them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _contender import PEERS, ROOT

GOAL = 0.95
EVAL_EVERY, EVAL_EPISODES = 5_000, 20
SB3 = {
    "sb3-default": {"num_envs": 1, "horizon": 500, "kwargs": {}},
    "sb3-our-settings": {
        "num_envs": 8,
        "horizon": 100,
        "kwargs": {
            "learning_rate": 1e-3,
            "train_freq": 1,
            "gradient_steps": 4,
            "ent_coef": "auto_0.1",
            "learning_starts": 2000,
        },
    },
}


def train_sb3(name: str, seed: int, path: Path, max_s: float) -> None:
    """Train SB3 until it reaches the goal twice in a row or its time is up, and write what a run of ours writes."""
    from _gym_bridge import Bridge
    from stable_baselines3 import SAC
    from stable_baselines3.common.vec_env import DummyVecEnv

    from roboloop.envs.config import EnvConfig
    from roboloop.envs.registry import make
    from roboloop.run.evaluate import VALIDATION, Evaluator, Plan

    settings: dict[str, Any] = SB3[name]
    cfg = EnvConfig(max_episode_steps=settings["horizon"])
    vec = DummyVecEnv([lambda i=i: Bridge(cfg, seed, i) for i in range(settings["num_envs"])])
    model = SAC("MlpPolicy", vec, device="cpu", seed=seed, **settings["kwargs"])
    evaluator = Evaluator(lambda: make(cfg, evaluation=True), 1, 10)

    class Deterministic:
        def act(self, obs: Any, explore: bool, rng: Any) -> Any:
            return model.predict(obs, deterministic=True)[0]

    path.mkdir(parents=True)
    (path / "config.yaml").write_text(json.dumps({"experiment": name, "settings": settings}))
    (path / "status.json").write_text(json.dumps({"state": "done", "step": 0, "steps": 0}))
    train_s, successes = 0.0, [0.0]
    while train_s < max_s and min(successes[-2:]) < GOAL:
        start_s = time.monotonic()
        model.learn(EVAL_EVERY, reset_num_timesteps=False)
        train_s += time.monotonic() - start_s
        summary = evaluator.run(Deterministic(), Plan(EVAL_EPISODES, 0, VALIDATION))
        successes.append(summary.success)
        row = {"step": model.num_timesteps, **summary.metrics()}
        with open(path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        with open(path / "timing.jsonl", "a") as file:
            file.write(json.dumps({"step": model.num_timesteps, "wall_s": train_s}) + "\n")
        print(
            f"{name} seed {seed}: {model.num_timesteps} steps, {train_s:.0f} s, success {summary.success:.0%}",
            flush=True,
        )


def train_ours(seed: int, runs: Path) -> None:
    """Run the recipe from the command line, as a user does."""
    flags = [f"--seed={seed}", f"--runs-dir={runs}", "--experiment=roboloop", "--eval.stop-success=None"]
    flags += [f"--eval.every-steps={EVAL_EVERY}", f"--eval.episodes={EVAL_EPISODES}"]
    subprocess.run([sys.executable, "-m", "roboloop.cli", "train", "reach", *flags], check=True)


def reached(path: Path) -> dict[str, float | None]:
    """Return steps and training seconds at which success first reached the goal."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (path / "timing.jsonl").read_text().splitlines()]
    step = next((r["step"] for r in rows if (r.get("eval/success") or 0) >= GOAL), None)
    if step is None:
        return {"steps": None, "train_s": None, "best": max(r.get("eval/success") or 0 for r in rows)}
    timing = next(t for t in times if t["step"] >= step)
    train_s = timing["collect_s"] + timing["update_s"] if "collect_s" in timing else timing["wall_s"]
    return {"steps": step, "train_s": train_s, "best": max(r.get("eval/success") or 0 for r in rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/race"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=["roboloop", *SB3], default=["roboloop", *SB3])
    parser.add_argument("--max-s", type=float, default=1200.0, help="training seconds that SB3 is given")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, seed, path, max_s = args.serve
        train_sb3(name, int(seed), Path(path), float(max_s))
        return
    for seed in args.seeds:
        for name in args.only:
            path = args.runs / name / "reach-v3" / str(seed)
            if not path.exists() and name == "roboloop":
                train_ours(seed, args.runs)
            elif not path.exists():
                command = [str(PEERS), __file__, "--serve", name, str(seed), str(path), str(args.max_s)]
                subprocess.run(command, check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
            print(f"{name} seed {seed}: {reached(path)}", flush=True)


if __name__ == "__main__":
    main()
