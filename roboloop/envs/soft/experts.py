"""Hands that were written and not learned: from what is seen alone, for tasks whose picks are chosen.

``place`` knows where a sheet's corners belong and brings the worst one there; ``outward`` pulls the corner nearest to
the table's middle straight away from it; ``line`` puts the bead of a rope that is farthest from its place there,
``ends`` does so with its ends only; ``fold`` lays a side's corners over their counterparts; ``random`` holds the object
anywhere and moves it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array, Decision
from roboloop.envs.soft.geometry import corner_numbers
from roboloop.envs.soft.tasks import CORNER, MOVE_M, SoftTask, find

CARRY = 0.2
"""Height of the outward pull, as an action: enough to come over a fold."""
RANDOM = "random"

Expert = Callable[[SoftTask, Array, np.random.Generator], Array]
"""From a task and one record to an action."""


def _has(record: Array, name: str) -> bool:
    return name in (record.dtype.names or ())


def _move(task: SoftTask, way_m: Array) -> Array:
    """Return the columns of a move along a way, shortened to what one action can do."""
    xy = way_m / MOVE_M
    xy = xy / max(1.0, float(np.abs(xy).max()))
    return np.array([*xy, CARRY]) if task.flex.is_sheet else xy


def _places_m(task: SoftTask, record: Array) -> Array:
    """Return places ``[N, 2]`` of the particles, or of the pixels to pick from where there is only a picture."""
    half_m = task.flex.half_m
    if _has(record, "vector"):
        return record["vector"].reshape(-1, 3)[:, :2].astype(np.float64) * half_m
    return record["picks"].astype(np.float64).reshape(-1, 2) * half_m  # pairs of two hands apart


def _corners_m(task: SoftTask, record: Array) -> Array:
    """Return the places ``[4, 2]`` of the corners, or of what sticks out where they cannot be told."""
    places_m = _places_m(task, record)
    if _has(record, "vector"):
        return places_m[list(corner_numbers(task.flex.rows))]
    ways = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    outermost: Array = places_m[np.argmax(places_m @ ways.T, axis=0)]
    return outermost


def _pull(task: SoftTask, corners_m: Array, chosen: Array, ways_m: Array) -> Array:
    """Return the action that holds corners, one with each hand, and moves them along their ways."""
    picks = 2.0 * np.eye(4)[chosen] - 1.0 if task.pick == CORNER else corners_m[chosen] / task.flex.half_m
    return np.concatenate([*picks, *(_move(task, way_m) for way_m in ways_m[chosen])])


def _place(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Bring the corner that is farthest from its place in the spread sheet there, or two of them with two hands."""
    corners_m = _corners_m(task, record)
    goals_m = task.flex.flat_m[list(corner_numbers(task.flex.rows)), :2]
    if task.rewards[0] == "coverage":  # then a sheet may as well lie turned by quarters, or on its other side
        turns = [np.roll(order, k, axis=0) for order in (goals_m, goals_m[::-1]) for k in range(4)]
        goals_m = min(turns, key=lambda goal: float(np.square(goal - corners_m).sum()))
    ways_m = goals_m - corners_m
    return _pull(task, corners_m, np.argsort(-np.linalg.norm(ways_m, axis=1))[: task.hands], ways_m)


def _outward(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Pull the corner nearest to the table's middle straight away from it, as far as a flat sheet's corner is."""
    corners_m = _corners_m(task, record)
    gap_m = np.maximum(np.linalg.norm(corners_m, axis=1), 1e-6)
    ways_m = corners_m * (task.flex.length_m / np.sqrt(2.0) / gap_m - 1.0)[:, None]
    return _pull(task, corners_m, np.argsort(gap_m)[: task.hands], ways_m)


def _fold(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Lay that corner of the moving side which is farther from its counterpart over it."""
    if not _has(record, "vector"):
        raise ConfigError("sides cannot be told in a picture: 'fold' needs env.observe: state")
    corners_m = _corners_m(task, record)
    ways_m = corners_m[[1, 2]] - corners_m[[0, 3]]
    worst = int(np.argmax(np.linalg.norm(ways_m, axis=1)))
    action = _pull(task, corners_m, np.array([(0, 3)[worst]]), np.repeat(ways_m[[worst]], 4, axis=0))
    action[-1] = 1.0  # as high as it goes, so that the sheet below stays
    return action


def _line(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Put the bead, or what is seen of the rope, that is farthest from its place on the line there."""
    places_m, line_m = _places_m(task, record), task.flex.flat_m[:, :2]
    if _has(record, "vector"):
        ways_m = min((line_m - places_m, line_m[::-1] - places_m), key=lambda way: float(np.square(way).sum()))
    else:
        ways_m = places_m * np.array([0.0, -1.0])
    worst = int(np.argmax(np.linalg.norm(ways_m, axis=1)))
    return np.concatenate([places_m[worst] / task.flex.half_m, _move(task, ways_m[worst])])


def _ends(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Pull the end of a rope, or the leftmost or rightmost that is seen of it, that is farther from its place there."""
    places_m = _places_m(task, record)
    ends_m = places_m[[0, -1]] if _has(record, "vector") else places_m
    ends_m = ends_m[[ends_m[:, 0].argmin(), ends_m[:, 0].argmax()]]
    ways_m = task.flex.flat_m[[0, -1], :2] - ends_m
    worst = int(np.argmax(np.linalg.norm(ways_m, axis=1)))
    return np.concatenate([ends_m[worst] / task.flex.half_m, _move(task, ways_m[worst])])


def _random(task: SoftTask, record: Array, rng: np.random.Generator) -> Array:
    """Hold the object anywhere and move it anywhere."""
    picks = record["picks"]
    return np.concatenate([picks[rng.integers(len(picks))], rng.uniform(-1.0, 1.0, task.move_dim)])


EXPERTS: dict[str, Expert] = {
    "place": _place,
    "outward": _outward,
    "fold": _fold,
    "line": _line,
    "ends": _ends,
    RANDOM: _random,
}
SHEET_EXPERTS = ("place", "outward", RANDOM)
SEAM_EXPERTS = ("outward", RANDOM)
KNOWN = {
    "rope-straighten": ("line", "ends", RANDOM),
    "cloth-corner": SHEET_EXPERTS,
    "cloth-spread": SHEET_EXPERTS,
    "cloth-two-hand": SHEET_EXPERTS,
    "cloth-goal": SHEET_EXPERTS,
    "cloth-fold": ("fold", RANDOM),
    "seam-3": SEAM_EXPERTS,
    "seam-6": SEAM_EXPERTS,
    "seam-9": SEAM_EXPERTS,
}
"""Task -> its experts, the best first."""


class SoftExpert(WithoutWeights):
    """One of them, batched."""

    def __init__(self, task: str, name: str) -> None:
        self._name, self._task_name = name, task
        self._task, self._expert = find(task), EXPERTS[name]

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide; only the random one draws anything."""
        if not _has(obs, "picks"):
            raise ConfigError("scripted hands choose their picks: env.soft.pick must be chosen")
        if self._task.pick == CORNER and self._name != RANDOM and not _has(obs, "vector"):
            raise ConfigError(f"corners cannot be told in a picture: {self._name!r} needs env.observe: state")
        actions = [self._expert(self._task, record, rng) for record in obs]
        return Decision(np.clip(np.asarray(actions), -1, 1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "task": self._task_name, "name": self._name}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> SoftExpert:
        """Build the same policy anew."""
        return cls(data["task"], data["name"])


def scripted_policy(task: str, name: str = "") -> SoftExpert:
    """Return a task's expert, or another one by its name."""
    find(task)
    known = KNOWN[task]
    if name and name not in known:
        raise ConfigError(f"soft/{task} has no expert {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return SoftExpert(task, name or known[0])
