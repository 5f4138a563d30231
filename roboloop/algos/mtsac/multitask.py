"""What soft actor-critic does for each task of a set apart: rows and rewards."""

from __future__ import annotations

from roboloop.algos.limits import check_task_rows
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.core.errors import ConfigError
from roboloop.core.types import Batch, EnvSpec, State
from roboloop.nets.normalize import RunningNorm

REWARD_VARIANCE_FLOOR = 1e-2
"""A task whose rewards hardly differ yet is not blown up."""


def tasks_of(cfg: MTSACConfig, spec: EnvSpec, frame_stack: int) -> tuple[str, ...]:
    """Return the tasks of a set; what cannot be learned is refused."""
    if not spec.own_tasks:
        name = spec.protocol.get("task", "this environment")
        raise ConfigError(f"mtsac needs a set of tasks such as metaworld/mt3: {name} is one; take --algo sac")
    if cfg.net == "soft" and frame_stack != 1:
        raise ConfigError(f"net 'soft' reads the task once: leave env.frame_stack at 1, not {frame_stack}")
    check_task_rows(cfg, len(spec.own_tasks))
    return spec.own_tasks


def reward_view(cfg: MTSACConfig, num_tasks: int) -> TaskDeviations | None:
    """Return how rewards are shown; None = as they are."""
    return TaskDeviations(num_tasks) if cfg.normalize_reward else None


class TaskDeviations:
    """Shows rewards over the running deviation of their task's; nothing scaled is ever stored."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._norm = RunningNorm(num_tasks, REWARD_VARIANCE_FLOOR)

    def __call__(self, batch: Batch) -> Batch:
        """Learn the deviations from a batch and divide by them; what is good stays good, for nothing is shifted."""
        by_task = batch.reward.reshape(self._num_tasks, -1)
        self._norm.update(by_task.T)
        over_deviation = self._norm.numbers[self._num_tasks :]
        return batch._replace(reward=(by_task * over_deviation[:, None]).reshape(-1))

    def state(self) -> State:
        """Return the sums."""
        return self._norm.state()

    def load(self, state: State) -> None:
        """Restore the sums."""
        self._norm.load(state)
