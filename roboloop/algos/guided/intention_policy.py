"""A policy with an intention for each task: a scheduler says which of them acts, and without exploring the main one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from roboloop.algos.guided.intentions import Intentions
from roboloop.algos.guided.schedulers import HandcraftedSchedule, ScheduleConfig, make_scheduler, schedule_from_data
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.core.blueprint import kind_of
from roboloop.core.config import to_dict
from roboloop.core.tasks import task_index
from roboloop.core.types import Array, Decision, EnvSpec


def as_set(spec: EnvSpec, tasks: Sequence[str]) -> EnvSpec:
    """Return what learns K tasks of one environment: a set of tasks, whose observations end with the task."""
    shape = (math.prod(spec.obs_shape) + len(tasks),)
    return dataclasses.replace(
        spec, obs_shape=shape, obs_dtype=np.dtype(np.float32), tasks=tuple(tasks), one_task_each=True
    )


def showing_task(obs: Array, task: Array, num_tasks: int) -> Array:
    """Return observations ``[..., D]`` with the task of each, as one-hot, behind them."""
    one_hot = np.eye(num_tasks, dtype=np.float32)[task]
    return np.concatenate((obs.astype(np.float32, copy=False), one_hot), axis=-1)


class IntentionPolicy:
    """Acts by the actor of a set of tasks; the choices of its scheduler are its memory."""

    def __init__(
        self,
        actor: LearnerPolicy,
        cfg: ScheduleConfig,
        tasks: Sequence[str],
        max_steps: int,
        seed: int,
        always: bool = False,
    ) -> None:
        """Follow a schedule over episodes of so many steps; ``always`` = without exploring too."""
        self.actor, self.scheduler = actor, make_scheduler(cfg, tasks, seed)
        self._about: dict[str, Any] = {"schedule": to_dict(cfg), "tasks": [*tasks], "max_steps": max_steps}
        self._about |= {"seed": seed, "always": always}
        self._always, self._num_tasks = always, len(tasks)
        self.intentions = Intentions(self.scheduler, cfg.period, max_steps)
        self.memory_size = self.intentions.memory_size

    @property
    def version(self) -> int:
        """Which weights these are."""
        return self.actor.version

    @version.setter
    def version(self, version: int) -> None:
        self.actor.version = version

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return actions of the tasks whose turn it is; without exploring, of the main one, and nothing is chosen."""
        tasks = np.zeros(len(obs), np.int64)
        if explore or self._always:
            tasks, memory = self.intentions.advance(memory, rng)
        seen = showing_task(np.asarray(obs).reshape(len(obs), -1), tasks, self._num_tasks)
        none = np.zeros((len(obs), 0), np.float32)  # the choices are no business of the actor
        return Decision(self.actor.act(seen, none, explore, rng).action, memory)

    def shares(self, memory: Array) -> dict[str, float]:
        """Return in which share of an episode's steps each task acted, from its row of the memory."""
        steps = self.intentions.steps_by_choice(memory)
        total = np.bincount(self.intentions.choices(memory), steps, self._num_tasks)
        return dict(zip(self._about["tasks"], (total / max(1, sum(steps))).tolist(), strict=True))

    def with_schedule(self, parts: Sequence[tuple[str, int]]) -> IntentionPolicy:
        """Return the policy of some tasks one after another, each for so many steps; the last one goes on."""
        about = self._about
        for name, _ in parts:
            task_index(name, about["tasks"], "--schedule")
        tasks = [name for name, steps in parts for _ in range(max(1, steps))]
        cfg = HandcraftedSchedule(period=1, chance=1.0, lists=(" ".join(tasks),))
        return IntentionPolicy(self.actor, cfg, about["tasks"], len(tasks), about["seed"], always=True)

    def for_task(self, name: str) -> OneIntention:
        """Return the policy of one task alone, the main one if none is named."""
        tasks: Sequence[str] = self._about["tasks"]
        return OneIntention(self.actor, task_index(name, tasks, "--task") if name else 0, self._num_tasks)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs; a learned schedule is that of this moment."""
        about = {**self._about, "scheduler": self.scheduler.state()}
        return {"kind": kind_of(self), "actor": self.actor.blueprint(), **about}

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        return self.actor.num_weights

    def write_weights(self, out: Array) -> None:
        """Write the actor's."""
        self.actor.write_weights(out)

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        self.actor.read_weights(flat, version)

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> IntentionPolicy:
        """Build the same policy anew, with weights still to be read."""
        actor, schedule = LearnerPolicy.from_blueprint(data["actor"]), schedule_from_data(data["schedule"])
        policy = cls(actor, schedule, data["tasks"], data["max_steps"], data["seed"], data["always"])
        policy.scheduler.load(data["scheduler"])
        return policy


class OneIntention:
    """The policy of one task, which needs no memory."""

    memory_size = 0

    def __init__(self, actor: LearnerPolicy, task: int, num_tasks: int) -> None:
        self.actor, self.task, self.num_tasks, self.version = actor, task, num_tasks, actor.version

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return that task's actions."""
        tasks = np.full(len(obs), self.task)
        return self.actor.act(
            showing_task(np.asarray(obs).reshape(len(obs), -1), tasks, self.num_tasks), memory, explore, rng
        )
