"""The tasks as tables: where the arm may go, what it holds on to, and when it has succeeded. Metres and radians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.envs.panda.config import DOFS, PandaConfig

AXES = DOFS[:3]
POSE = ("x", "y", "z", "yaw")
"""Columns of ``Reading.object_pose``."""
Range = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A workspace; a range of no width fixes its axis."""

    x: Range
    y: Range
    z: Range

    def low(self) -> tuple[float, float, float]:
        """Return the lower corner."""
        return self.x[0], self.y[0], self.z[0]

    def high(self) -> tuple[float, float, float]:
        """Return the upper corner."""
        return self.x[1], self.y[1], self.z[1]


@dataclass(frozen=True)
class PandaTask:
    """One task; the rig, the simulation and the experts read nothing else."""

    name: str
    dof: tuple[str, ...]
    """What an action moves."""
    object_dof: tuple[str, ...]
    """What of the object's pose is observed."""
    observe: tuple[str, ...]
    limits: Mapping[str, Box]
    start: Box
    """Where an episode's first pose is drawn."""
    success_m: float
    """Distance within which the task is done (see ``rig.distance``)."""
    near_m: float = float("inf")
    """Distance from hand to object within which success counts."""
    goal: Box | None = None
    """Where a goal is drawn."""
    puck: Box | None = None
    """Where the puck is placed."""
    apart_m: float = 0.0
    """Smallest distance from puck to goal at first."""
    behind_m: float = 0.0
    """Distance from the puck's middle to a hand that pushes it."""
    handle: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the handle is when all is closed."""
    hinge: tuple[float, float] | None = None
    """Axis of the door."""
    opening: float = 0.0
    """How far it must be opened: metres of the drawer's way, or of the door handle's arc."""
    gripper_open: bool = True
    """How the gripper is while no action moves it."""

    @property
    def closes(self) -> bool:
        """Whether the reset must close something."""
        return self.opening > 0


@dataclass(frozen=True)
class Gains:
    """The rig's hybrid impedance controller: Cartesian stiffness and damping, and joint ones towards the same pose."""

    kx: tuple[float, float] = (250.0, 15.0)
    """Translation N/m, rotation Nm/rad."""
    kxd: tuple[float, float] = (37.0, 2.0)
    kq: tuple[float, ...] = (40.0, 30.0, 50.0, 25.0, 35.0, 25.0, 10.0)
    kqd: tuple[float, ...] = (4.0, 6.0, 5.0, 5.0, 3.0, 2.0, 1.0)


GAINS = Gains()
RATE_HZ = 1000
"""Of the controller and the simulation: one tick is a millisecond."""
CAMERA_HZ = 30
CAMERA_LATENCY_S = 0.04
"""From a picture to the pose found in it."""
JUMP_M = 0.01
"""A target that moves further than an action can, by this much, is refused."""
SOFT_MARGIN_M = 0.05
"""The arm may be pushed so far out of its limits before that is a fault."""
OPEN_WIDTH_M = 0.08
FINGER_SPEED_M_S = 0.05
HAND_SHARE = 0.3
"""Of the hand's way in a push: a push that slips a little must still be worth it."""
REOPENED_M = 0.02
"""What is open further than this is closed by the reset."""
DOWN = (0.0, 1.0, 0.0, 0.0)
"""The hand points down (w, x, y, z)."""
HOME_RAD = (0.0, -0.30, 0.0, -2.45, 0.0, 2.15, 0.785398)
"""Joint angles that a reset goes to."""
CLEAR_Z_M = 0.42
"""Height at which the hand passes over everything."""

_Z_HANDLE = (0.25, 0.25)
_REACH = {
    "small": Box((0.3, 0.6), (-0.15, 0.15), (0.3, 0.5)),
    "large": Box((0.25, 0.7), (-0.4, 0.4), (0.15, 0.65)),
}
_PUSH = {
    "small": Box((0.35, 0.65), (-0.15, 0.15), (0.04, 0.04)),
    "large": Box((0.3, 0.7), (-0.3, 0.3), (0.04, 0.04)),
}
_DRAWER = {"small": Box((0.30, 0.66), (0.0, 0.0), _Z_HANDLE), "large": Box((0.25, 0.72), (0.0, 0.0), _Z_HANDLE)}
_DOOR = {
    "small": Box((0.33, 0.645), (-0.325, 0.18), _Z_HANDLE),
    "large": Box((0.28, 0.7), (-0.4, 0.3), _Z_HANDLE),
}

TABLE = {
    "reach": PandaTask(
        "reach",
        dof=AXES,
        object_dof=AXES,
        observe=("ee_pos", "object"),
        limits=_REACH,
        start=_REACH["small"],
        goal=_REACH["small"],
        success_m=0.015,
    ),
    "push": PandaTask(
        "push",
        dof=("x", "y"),
        object_dof=("x", "y"),
        observe=("ee_pos", "object", "difference", "goal"),
        limits=_PUSH,
        start=Box((0.36, 0.40), (-0.12, 0.12), (0.04, 0.04)),
        goal=Box((0.52, 0.60), (-0.08, 0.08), (0.04, 0.04)),
        puck=Box((0.46, 0.52), (-0.08, 0.08), (0.04, 0.04)),
        apart_m=0.06,
        behind_m=0.045,
        success_m=0.025,
        gripper_open=False,
    ),
    "drawer": PandaTask(
        "drawer",
        dof=("x", "gripper"),
        object_dof=("x",),
        observe=("ee_pos", "object", "gripper"),
        limits=_DRAWER,
        start=Box((0.35, 0.5), (0.0, 0.0), _Z_HANDLE),
        success_m=0.01,
        near_m=0.05,
        handle=(0.6, 0.0, 0.25),
        opening=0.12,
    ),
    "door": PandaTask(
        "door",
        dof=("x", "y", "gripper"),
        object_dof=("x", "y", "yaw"),
        observe=("ee_pos", "object", "gripper"),
        limits=_DOOR,
        start=Box((0.40, 0.5), (-0.08, 0.08), _Z_HANDLE),
        success_m=0.02,
        near_m=0.05,
        handle=(0.6, 0.0, 0.25),
        hinge=(0.6, -0.2),
        opening=0.14,
    ),
}


def find(name: str, cfg: PandaConfig) -> PandaTask:
    """Return a task with what the config says otherwise."""
    if name not in TABLE:
        raise ConfigError(f"unknown panda task {name!r}{nearest(name, TABLE)}")
    task = TABLE[name]
    if not cfg.dof and not cfg.observe:
        return task
    dof = cfg.dof or task.dof
    fixed = [a for a in dof if a in AXES and len(set(getattr(task.limits[cfg.limits], a))) == 1]
    if fixed:
        raise ConfigError(f"env.panda.dof: {', '.join(fixed)} cannot move in panda/{name}")
    return replace(task, dof=dof, observe=cfg.observe or task.observe)


def part_sizes(task: PandaTask) -> dict[str, int]:
    """Return how many numbers each part of an observation has, in its order."""
    axes = [axis for axis in task.dof if axis in AXES]
    sizes = {"ee_pos": len(axes), "ee_quat": 4, "object": len(task.object_dof), "goal": len(axes), "gripper": 1}
    sizes["difference"] = sum(axis in task.object_dof for axis in axes)
    return {part: sizes[part] for part in task.observe}


class SceneLayout(NamedTuple):
    """What an episode's seed draws: the first pose of the hand, and where goal and puck are."""

    start: Array
    goal: Array
    puck: Array


def push_distances_m(task: PandaTask, hand_m: Array, puck_m: Array, goal_m: Array) -> tuple[Array, Array]:
    """Return the puck's way to the goal, and a share of the hand's to where it can push from: behind the puck.

    Were it the hand's way to the puck, a hand beside the puck would lose reward by going around it. Near the goal the
    share fades: there is less and less to go around for. Positions are ``[..., 2]``.
    """
    to_goal_m = goal_m - puck_m
    left_m = np.linalg.norm(to_goal_m, axis=-1)
    behind_m = puck_m - to_goal_m * (task.behind_m / np.maximum(left_m, 1e-6))[..., None]
    share = HAND_SHARE * np.minimum(1.0, left_m / task.success_m)
    return left_m, share * np.linalg.norm(hand_m - behind_m, axis=-1)


def draw(task: PandaTask, seed: int) -> SceneLayout:
    """Return the layout of an episode; rig and simulation both ask, and agree."""
    rng = stream(seed, "panda")

    def place(box: Box | None) -> Array:
        return np.zeros(3) if box is None else rng.uniform(box.low(), box.high())

    start, puck = place(task.start), place(task.puck)
    goal = place(task.goal)
    while float(np.linalg.norm((goal - puck)[:2])) < task.apart_m:
        goal = place(task.goal)
    return SceneLayout(start, goal, puck)
