"""Auxiliary tasks of the Panda rig, from its observations: on the way to opening a drawer there is reaching its handle.

Success is judged at one moment; the rig's own also asks that it lasts for ``hold_s``.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.envs.panda.tasks import AXES, TABLE, PandaTask, find, part_sizes, push_distances_m

NAMES = {
    "reach": ("reach",),
    "push": ("push", "reach"),
    "drawer": ("open", "reach", "grasp"),
    "door": ("open", "reach", "grasp"),
}
"""Task -> its auxiliary tasks, the main one first."""
NEEDS = {
    "reach": {"ee_pos", "object"},
    "push": {"ee_pos", "object", "goal"},
    "drawer": {"ee_pos", "object", "gripper"},
    "door": {"ee_pos", "object", "gripper"},
}
"""Task -> parts of the observation without which nothing can be said."""
REACHED_M = 0.015
"""From hand to handle."""
REACHED_PUCK_M = 0.075
"""From hand to the middle of the puck: about to touch."""
HELD_M, EMPTY_M = 0.03, 0.01
"""Width of a gripper that is closed, and of one with nothing in it; the handle is between them."""


class PandaTasks:
    """Rewards are the decrease of each task's distance, 1 = as fast as the hand can move, as the rig's own."""

    def __init__(self, task: PandaTask, cfg: PandaConfig) -> None:
        is_whole = set(TABLE[task.name].dof) <= set(task.dof) and NEEDS[task.name] <= set(task.observe)
        self.names = NAMES[task.name] if is_whole else ()  # a rig with other senses has no named tasks
        self._task, self._is_sparse = task, cfg.reward == "sparse"
        self._step_m = cfg.max_speed_m_s / cfg.hz
        sizes = part_sizes(task)
        ends = np.cumsum([*sizes.values()]).tolist()
        self._columns = {part: slice(end - sizes[part], end) for part, end in zip(sizes, ends, strict=True)}

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``."""
        if self._is_sparse:
            return self.task_successes(obs, action, next_obs).astype(np.float32)
        before, after = (self._distances_m(np.asarray(o, np.float64)) for o in (obs, next_obs))
        return self._stacked([(before[name] - after[name]) / self._step_m for name in self.names], obs, np.float32)

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        seen = np.asarray(next_obs, np.float64)
        return self._stacked([self._is_done(name, seen) for name in self.names], obs, np.bool_)

    @staticmethod
    def _stacked(columns: list[Array], obs: Array, dtype: type) -> Array:
        return np.stack(columns, axis=1).astype(dtype) if columns else np.zeros((len(obs), 0), dtype)

    def _distances_m(self, obs: Array) -> dict[str, Array]:
        """Return what is left to do of each task."""
        to_object_m = self._to_object_m(obs)
        if self._task.name == "reach":
            return {"reach": to_object_m}
        if self._task.name == "push":
            where = (self._part(obs, part)[:, :2] for part in ("ee_pos", "object", "goal"))
            left_m, behind_m = push_distances_m(self._task, *where)
            return {"push": left_m + behind_m, "reach": to_object_m}
        left = {self.names[0]: self._left_m(obs) + to_object_m, "reach": to_object_m} if self.names else {}
        if "grasp" in self.names:
            left["grasp"] = to_object_m + np.maximum(0.0, self._part(obs, "gripper")[:, 0] - HELD_M)
        return left

    def _is_done(self, name: str, obs: Array) -> Array:
        task, to_object_m = self._task, self._to_object_m(obs)
        if name == "reach":
            closest_m = {"reach": task.success_m, "push": REACHED_PUCK_M}
            done: Array = to_object_m <= closest_m.get(task.name, REACHED_M)
        elif name == "grasp":
            width_m = self._part(obs, "gripper")[:, 0]
            done = (to_object_m <= task.near_m) & (width_m < HELD_M) & (width_m > EMPTY_M)
        else:
            done = (self._left_m(obs) <= task.success_m) & (to_object_m <= task.near_m)
        return done

    def _part(self, obs: Array, part: str) -> Array:
        return obs[:, self._columns[part]]

    def _to_object_m(self, obs: Array) -> Array:
        """Return the distance from hand to object along the axes that both have."""
        task = self._task
        axes = [axis for axis in task.dof if axis in AXES]
        shared = [axis for axis in axes if axis in task.object_dof]
        hand = self._part(obs, "ee_pos")[:, [axes.index(axis) for axis in shared]]
        thing = self._part(obs, "object")[:, [task.object_dof.index(axis) for axis in shared]]
        distance_m: Array = np.linalg.norm(hand - thing, axis=1)
        return distance_m

    def _left_m(self, obs: Array) -> Array:
        """Return how far the puck is from its goal, or the drawer or door from being open."""
        task, thing = self._task, self._part(obs, "object")
        left_m: Array
        if not task.closes:
            left_m = np.linalg.norm(thing - self._part(obs, "goal"), axis=1)
            return left_m
        if task.hinge is None:
            opened_m = task.handle[0] - thing[:, task.object_dof.index("x")]
        else:
            opened_m = thing[:, task.object_dof.index("yaw")] * (task.handle[1] - task.hinge[1])
        left_m = np.maximum(0.0, task.opening - opened_m)
        return left_m


def tasks(task: str, cfg: PandaEnvConfig) -> PandaTasks:
    """Return the tasks of ``panda/<task>``."""
    return PandaTasks(find(task, cfg.panda), cfg.panda)
