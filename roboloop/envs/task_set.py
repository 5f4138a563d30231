"""Several tasks as one environment: each copy does one of them for ever, and its observations say which."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, build_policy, kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.tasks import SEPARATOR
from roboloop.core.types import Array, Decision, Env, EnvSpec, PortablePolicy, State
from roboloop.envs.env import FLOAT


class MemberEnv:
    """One task of a set; the task's number stands behind each observation, as one-hot."""

    def __init__(self, env: Env, name: str, tasks: tuple[str, ...], number: int) -> None:
        self._env = env
        self._task = np.zeros(len(tasks), np.float32)
        self._task[number] = 1.0
        self.spec = _spec(env.spec, name, tasks)

    def reset(self, seed: int) -> Array:
        """Begin an episode and return its first observation."""
        return np.concatenate((self._env.reset(seed), self._task))

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return np.concatenate((obs, self._task)), reward, terminated, truncated, info

    def render(self) -> Array:
        """Return a picture."""
        return self._env.render()

    def get_state(self) -> State:
        """Return all that a new instance of the same task needs to go on."""
        return self._env.get_state()

    def set_state(self, state: State) -> None:
        """Continue from what ``get_state`` returned."""
        self._env.set_state(state)

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


def _spec(spec: EnvSpec, name: str, tasks: tuple[str, ...]) -> EnvSpec:
    """Return what all members have in common, given the spec of one."""
    if len(spec.obs_shape) != 1 or spec.obs_dtype != FLOAT:
        raise ConfigError(f"task set {name!r}: {spec.protocol.get('task')} shows more than a vector of numbers")
    return dataclasses.replace(
        spec,
        obs_shape=(spec.obs_shape[0] + len(tasks),),
        tasks=tasks,
        one_task_each=True,
        protocol={**spec.protocol, "task": name, "tasks": SEPARATOR.join(tasks)},
    )


def task_numbers(obs: Array, num_tasks: int) -> Array:
    """Return the number of each row's task, from observations ``[B, ...]`` of a set."""
    numbers: Array = obs.reshape(len(obs), -1)[:, -num_tasks:].argmax(1)
    return numbers


class MemberExperts(WithoutWeights):
    """The expert of each row's task, which sees its own environment's observation."""

    def __init__(self, experts: list[PortablePolicy]) -> None:
        self._experts = experts

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Ask each expert for its rows."""
        numbers = task_numbers(obs, len(self._experts))
        own = obs[:, : -len(self._experts)]
        rows = {k: np.flatnonzero(numbers == k) for k in sorted(set(numbers.tolist()))}
        parts = {k: self._experts[k].act(own[at], memory[at], explore, rng).action for k, at in rows.items()}
        action = np.empty((len(obs), next(iter(parts.values())).shape[1]), np.float32)
        for k, at in rows.items():
            action[at] = parts[k]
        return Decision(action, memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "experts": [expert.blueprint() for expert in self._experts]}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> MemberExperts:
        """Build the same policy anew."""
        return cls([build_policy(expert) for expert in data["experts"]])
