"""``envs check`` of a Gymnasium environment: what only Gymnasium's own interface shows."""

from __future__ import annotations

from roboloop.envs.findings import BUDGET_S, Findings
from roboloop.envs.gym.check import GymCheck
from roboloop.envs.gym.suite import ATARI, GymEnvConfig
from roboloop.envs.gym.world import DEFAULT_HORIZON, raw


def examine(task: str, cfg: GymEnvConfig, found: Findings, steps: int, short: bool) -> None:
    """Check what only Gymnasium's own interface shows."""
    if task.startswith(ATARI):
        return
    with found.during("making the environment"):
        env, limit = raw(task, cfg)
    try:
        looked = GymCheck(env, found)
        looked.check_spaces()
        horizon = cfg.horizon(limit or DEFAULT_HORIZON, False)
        looked.play(steps, BUDGET_S, horizon)
        looked.check_render()
        if limit is None and cfg.max_episode_steps is None and not looked.ended:
            seen = f"no episode ended in {looked.num_steps} steps and " if not short else ""
            text = f"{seen}it has no max_episode_steps: episodes are cut at {DEFAULT_HORIZON} steps"
            found.warn("endless", f"{text}; register a limit or set --env.max-episode-steps")
    finally:
        with found.during("close()"):
            env.close()
