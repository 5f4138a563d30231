"""The tasks as data: what lies on the table, who holds it where, what pays, and how long an episode is."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError, nearest
from roboloop.envs.soft.model import ROPE, Flex, sheet

MOVE_M = 0.1
"""A full action moves the held point so far along x and y."""
POINT, CORNER = "point", "corner"
SHEET_REWARDS = ("coverage", "area", "convex", "concave", "diagonal", "distance")


@dataclass(frozen=True)
class SoftTask:
    """One task."""

    flex: Flex
    rewards: tuple[str, ...]
    """Those that make sense, its own first."""
    horizon: int
    """Picks of an episode. Fewer than the 120 to 200 of the tasks' originals, whose actions moved a few centimetres at
    most: a good hand needs about a third of them, and a processor can learn from so many."""
    hands: int = 1
    pick: str = POINT
    is_crumpled: bool = True
    """Whether episodes begin with a crumpled object; else it lies flat, somewhere."""

    @property
    def pick_dim(self) -> int:
        """Numbers that say where to hold."""
        return 4 if self.pick == CORNER else 2 * self.hands

    @property
    def move_dim(self) -> int:
        """Numbers that say where to: x, y, and how high a sheet's point is carried."""
        return (3 if self.flex.is_sheet else 2) * self.hands


CLOTH = sheet(9)
TASKS = {
    "rope-straighten": SoftTask(ROPE, ("line", "distance"), horizon=30),
    "cloth-corner": SoftTask(CLOTH, SHEET_REWARDS, horizon=30, pick=CORNER),
    "cloth-spread": SoftTask(CLOTH, SHEET_REWARDS, horizon=30),
    "cloth-two-hand": SoftTask(CLOTH, SHEET_REWARDS, horizon=20, hands=2),
    "cloth-goal": SoftTask(CLOTH, ("distance", *SHEET_REWARDS[:-1]), horizon=30),
    "cloth-fold": SoftTask(CLOTH, ("fold",), horizon=15, is_crumpled=False),
    "seam-3": SoftTask(sheet(3), ("seam",), horizon=20, pick=CORNER),
    "seam-6": SoftTask(sheet(6), ("seam",), horizon=20, pick=CORNER),
    "seam-9": SoftTask(CLOTH, ("seam",), horizon=20, pick=CORNER),
}


def find(name: str) -> SoftTask:
    """Return a task by its name."""
    if name not in TASKS:
        raise ConfigError(f"unknown soft task {name!r}{nearest(name, TASKS)} (known: {', '.join(TASKS)})")
    return TASKS[name]


def reward_of(name: str, wanted: str) -> str:
    """Return the reward that a task pays: its own, or the wanted one if it makes sense there."""
    rewards = find(name).rewards
    if wanted and wanted not in rewards:
        hint = nearest(wanted, rewards)
        raise ConfigError(f"env.soft.reward of soft/{name} is one of {', '.join(rewards)}, not {wanted!r}{hint}")
    return wanted or rewards[0]
