"""Train SB3's SAC on one of our environments and write what a run of ours writes: `roboloop plot` overlays them.

    .venv-peers/bin/python benchmarks/sb3_baseline.py gym/HalfCheetah-v5 runs/sb3/HalfCheetah-v5/0 --steps 100000

It gets our environment through a thin bridge, the same training episodes, and our evaluator on the same goals;
evaluation is not counted as training time. Runs in the virtual environment of the peers (scripts/setup_peers.sh).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _gym_bridge import Bridge

from roboloop.core.types import Decision
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run.evaluate import VALIDATION, Evaluator, Plan


def train(args: argparse.Namespace) -> None:
    """Train until the steps or the seconds are used up, or the success is reached in two evaluations in a row."""
    import stable_baselines3
    from stable_baselines3 import SAC
    from stable_baselines3.common.vec_env import DummyVecEnv

    cfg = EnvConfig(id=args.env, max_episode_steps=args.horizon)
    vec = DummyVecEnv([lambda i=i: Bridge(cfg, args.seed, i) for i in range(args.num_envs)])
    model = SAC("MlpPolicy", vec, device="cpu", seed=args.seed, **json.loads(args.settings))
    evaluator = Evaluator(lambda _: make(cfg, evaluation=True), 1, min(args.eval_episodes, 10))

    class Deterministic:
        memory_size = 0

        def act(self, obs: Any, memory: Any, explore: bool, rng: Any) -> Decision:
            return Decision(model.predict(obs, deterministic=True)[0], memory)

    args.out.mkdir(parents=True)
    (args.out / "config.yaml").write_text(json.dumps({k: str(v) for k, v in vars(args).items()}))
    meta = {"versions": {"stable-baselines3": stable_baselines3.__version__}, "command": sys.argv}
    (args.out / "meta.json").write_text(json.dumps(meta))
    train_s, successes = 0.0, [0.0]
    while model.num_timesteps < args.steps and train_s < args.max_s and min(successes[-2:]) < args.stop_success:
        start_s = time.monotonic()
        model.learn(args.eval_every, reset_num_timesteps=False)
        train_s += time.monotonic() - start_s
        summary = evaluator.run(Deterministic(), Plan(args.eval_episodes, 0, VALIDATION))
        successes.append(0.0 if math.isnan(summary.success) else summary.success)
        metrics = {k: None if v != v else v for k, v in summary.metrics().items()}
        append(args.out / "metrics.jsonl", {"step": model.num_timesteps, **metrics})
        append(args.out / "timing.jsonl", {"step": model.num_timesteps, "wall_s": train_s, "train_s": train_s})
        status = {"state": "done", "step": model.num_timesteps, "steps": args.steps}  # as far as it is
        (args.out / "status.json").write_text(json.dumps(status))
        found = f"success {summary.success:.0%}, return {summary.episode_return:.1f}"
        print(f"{args.out}: {model.num_timesteps} steps, {train_s:.0f} s, {found}", flush=True)


def append(path: Path, row: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--horizon", type=int)
    parser.add_argument("--settings", default="{}", help="keyword arguments of SB3's SAC, as JSON")
    parser.add_argument("--eval-every", type=int, default=10_000)
    parser.add_argument("--eval-episodes", type=int, default=5)
    parser.add_argument("--stop-success", type=float, default=2.0)
    parser.add_argument("--max-s", type=float, default=1e9)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
