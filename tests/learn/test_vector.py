"""The whole loop learns on vector environments: points are steered to goals, and a pole is balanced."""

from typing import Any

import pytest

from roboloop.run.rundir import RunDir
from roboloop.track.read import read_jsonl
from tests.run.helpers import train

POINTS = {"id": "gymvec/outside.vec:Points-v0", "num_envs": 64}
POLE = {"id": "gymvec/CartPole-v1", "num_envs": 32}
QUICK = {"actor_lr": 2e-3, "critic_lr": 2e-3, "alpha_lr": 2e-3, "initial_alpha": 0.2, "gamma": 0.95}
SAC: dict[str, Any] = {"hidden": [32, 32], "batch_size": 64, "processes": 1, **QUICK}
PPO: dict[str, Any] = {
    "name": "ppo",
    "rollout_steps": 16,
    "minibatches": 4,
    "lr": 1e-3,
    "processes": 1,
    "hidden": [64, 64],
}
CALMED = {**PPO, "lr_schedule": "linear"}
"""At a constant step size, what a pole's policy is worth at the end swings by hundreds with the seed."""


@pytest.mark.parametrize(
    ("env", "algo", "steps", "least"),
    [(POINTS, SAC, 30_000, -12.0), (POINTS, PPO, 60_000, -12.0), (POLE, CALMED, 80_000, 250.0)],
    ids=["sac to goals", "ppo to goals", "ppo with a pole"],
)
def test_it_learns(tiny, env: dict[str, Any], algo: dict[str, Any], steps: int, least: float) -> None:
    config = tiny(
        steps=steps, warmup_steps=2_000, env={**env, "max_episode_steps": None, "eval_max_episode_steps": None},
        algo=algo, update={"per_step": 0.03}, replay={"capacity": 30_000}, log_every_steps=10_000,
        eval={"every_steps": 0, "episodes": 10}, checkpoint={"every_steps": 0},
    )  # fmt: skip
    path = train(config)
    last = [row for row in read_jsonl(RunDir.open(path, check_names=False).metrics) if "eval/return" in row][-1]
    assert last["eval/return"] > least  # -50 and 20 by chance
