"""What soft actor-critic does for each task of a set apart: rows, rewards, and what is said of it."""

from __future__ import annotations

from typing import Protocol

from roboloop.algos.limits import check_task_rows
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.sac.config import SACSettings
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.normalize import RunningNorm

REWARD_VARIANCE_FLOOR = 1e-2
"""A task whose rewards hardly differ yet is not blown up."""


def tasks_of(cfg: SACSettings, spec: EnvSpec, frame_stack: int) -> tuple[str, ...]:
    """Return the tasks that are told apart; none where there is one, or where one network is to find out by itself."""
    if not isinstance(cfg, MTSACConfig):
        return ()
    if not spec.own_tasks:
        name = spec.protocol.get("task", "this environment")
        raise ConfigError(f"mtsac needs a set of tasks such as metaworld/mt3: {name} is one; take --algo sac")
    if cfg.net == "soft" and frame_stack != 1:
        raise ConfigError(f"net 'soft' reads the task once: leave env.frame_stack at 1, not {frame_stack}")
    check_task_rows(cfg, len(spec.own_tasks))
    return spec.own_tasks


class RewardScale(Protocol):
    """Maps sampled rewards ``[N]``, which lie task by task, to those that are learned from."""

    def __call__(self, reward: Array) -> Array:
        """Return the scaled rewards; may learn from them how."""
        ...

    def state(self) -> State:
        """Return what was learned."""
        ...

    def load(self, state: State) -> None:
        """Restore what was learned."""
        ...


class ConstantScale:
    """The same factor for all."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, reward: Array) -> Array:
        """Multiply."""
        return reward * self._factor

    def state(self) -> State:
        """Return nothing: the config holds the factor."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class TaskScale:
    """Rewards over the running deviation of their task's, then times a factor; nothing scaled is ever stored."""

    def __init__(self, factor: float, num_tasks: int) -> None:
        self._factor, self._num_tasks = factor, num_tasks
        self._norm = RunningNorm(num_tasks, REWARD_VARIANCE_FLOOR)

    def __call__(self, reward: Array) -> Array:
        """Learn the deviations from a batch and divide by them; what is good stays good, for nothing is shifted."""
        by_task = reward.reshape(self._num_tasks, -1)
        self._norm.update(by_task.T)
        over_deviation = self._norm.numbers[self._num_tasks :]
        scaled: Array = (by_task * (self._factor * over_deviation)[:, None]).reshape(-1)
        return scaled

    def state(self) -> State:
        """Return the sums."""
        return self._norm.state()

    def load(self, state: State) -> None:
        """Restore the sums."""
        self._norm.load(state)


def make_reward_scale(cfg: SACSettings, num_tasks: int) -> RewardScale:
    """Return how the config asks for rewards to be scaled."""
    if isinstance(cfg, MTSACConfig) and cfg.normalize_reward:
        return TaskScale(cfg.reward_scale, num_tasks)
    return ConstantScale(cfg.reward_scale)
