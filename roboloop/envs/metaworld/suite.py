"""``metaworld/<task>``: what there is to know of Meta-World without importing it."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError, nearest
from roboloop.envs.config import EnvConfig, check_choice
from roboloop.envs.suite import Suite

REWARD_VERSIONS = ("v1", "v2")
GOAL_MODES = ("random", "fixed")

MT10 = (
    "reach-v3",
    "push-v3",
    "pick-place-v3",
    "door-open-v3",
    "drawer-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "peg-insert-side-v3",
    "window-open-v3",
    "window-close-v3",
)
"""Meta-World's ten-task benchmark; ``metaworld/0`` is its first task."""

MT25 = (
    *MT10,
    "coffee-pull-v3",
    "pick-out-of-hole-v3",
    "disassemble-v3",
    "pick-place-wall-v3",
    "basketball-v3",
    "stick-pull-v3",
    "button-press-wall-v3",
    "faucet-open-v3",
    "door-lock-v3",
    "lever-pull-v3",
    "sweep-into-v3",
    "faucet-close-v3",
    "coffee-button-v3",
    "button-press-topdown-wall-v3",
    "dial-turn-v3",
)
"""Its benchmark of 25 tasks."""

TASKS = (
    "assembly-v3",
    "basketball-v3",
    "bin-picking-v3",
    "box-close-v3",
    "button-press-topdown-v3",
    "button-press-topdown-wall-v3",
    "button-press-v3",
    "button-press-wall-v3",
    "coffee-button-v3",
    "coffee-pull-v3",
    "coffee-push-v3",
    "dial-turn-v3",
    "disassemble-v3",
    "door-close-v3",
    "door-lock-v3",
    "door-open-v3",
    "door-unlock-v3",
    "drawer-close-v3",
    "drawer-open-v3",
    "faucet-close-v3",
    "faucet-open-v3",
    "hammer-v3",
    "hand-insert-v3",
    "handle-press-side-v3",
    "handle-press-v3",
    "handle-pull-side-v3",
    "handle-pull-v3",
    "lever-pull-v3",
    "peg-insert-side-v3",
    "peg-unplug-side-v3",
    "pick-out-of-hole-v3",
    "pick-place-v3",
    "pick-place-wall-v3",
    "plate-slide-back-side-v3",
    "plate-slide-back-v3",
    "plate-slide-side-v3",
    "plate-slide-v3",
    "push-back-v3",
    "push-v3",
    "push-wall-v3",
    "reach-v3",
    "reach-wall-v3",
    "shelf-place-v3",
    "soccer-v3",
    "stick-pull-v3",
    "stick-push-v3",
    "sweep-into-v3",
    "sweep-v3",
    "window-close-v3",
    "window-open-v3",
)
"""All tasks of Meta-World v3."""

SETS = {
    "mt3": ("reach-v3", "window-open-v3", "drawer-close-v3"),
    "mt10": MT10,
    "mt25": MT25,
    "mt50": TASKS,
}
"""Sets of tasks by name; the first is ours, the others are Meta-World's benchmarks."""


@dataclass(frozen=True)
class MetaWorldEnvConfig(EnvConfig):
    """Keys of Meta-World."""

    reward_version: str = "v2"
    """Reward function: v1 or v2."""
    goal_mode: str = "random"
    """Goals: random draws one per episode from its seed, fixed keeps a single one."""

    def check(self) -> None:
        """Refuse unknown words."""
        super().check()
        check_choice("reward_version", self.reward_version, REWARD_VERSIONS)
        check_choice("goal_mode", self.goal_mode, GOAL_MODES)


def full_name(task: str) -> str:
    """Return the v3 name of a task, given by name or by its number in MT10."""
    if task.isdecimal() and int(task) < len(MT10):
        return MT10[int(task)]
    if task not in TASKS:
        raise ConfigError(f"unknown Meta-World task {task!r}{nearest(task, (*TASKS, *SETS))}")
    return task


SUITE = Suite(
    "metaworld",
    "roboloop.envs.metaworld.world:make",
    (*TASKS, *SETS),
    MetaWorldEnvConfig,
    packages=("metaworld", "mujoco"),
    full_name=full_name,
    sets=SETS,
    same_spaces=True,
    expert="roboloop.envs.metaworld.world:scripted_policy",
    example="reach-v3",
)
