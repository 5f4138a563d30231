"""Which task acts when: schedulers over named tasks, asked once per period of an episode's steps.

A choice is a pure function of the seed, the episode's key and the choices before it, so that it does not matter which
process asks; only the learned scheduler also depends on what it was told of earlier episodes. The first task is the
main one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from roboloop.core.config import override
from roboloop.core.errors import ConfigError
from roboloop.core.rng import stream
from roboloop.core.tasks import task_index
from roboloop.core.types import Array, State, Stateful


@dataclass(frozen=True)
class FixedSchedule:
    """One task all the time."""

    name: Literal["fixed"] = "fixed"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""
    task: str = ""
    """Which one; empty = the main task."""


@dataclass(frozen=True)
class UniformSchedule:
    """Any task, each as likely as the others."""

    name: Literal["uniform"] = "uniform"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""


@dataclass(frozen=True)
class WeightedSchedule:
    """The main task in a share of the choices, the others share the rest equally."""

    name: Literal["weighted"] = "weighted"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""
    main: float = 0.5
    """Probability of the main task."""


@dataclass(frozen=True)
class HandcraftedSchedule:
    """In some episodes a list made by hand, in the others weighted random choices."""

    name: Literal["handcrafted"] = "handcrafted"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""
    main: float = 0.5
    """Probability of the main task where no list is followed."""
    chance: float = 0.5
    """Probability that an episode follows a list, drawn evenly among them."""
    lists: tuple[str, ...] = ()
    """Names of tasks with blanks between them, such as 'reach grasp place'; begun again at its end."""


@dataclass(frozen=True)
class AfterConfig:
    """What may come after a task, and how likely."""

    task: str = ""
    """The task before; empty = the beginning of an episode."""
    then: tuple[str, ...] = ()
    """Tasks that may follow."""
    weights: tuple[float, ...] = ()
    """Of these tasks, in any unit; empty = all alike."""


@dataclass(frozen=True)
class ConditionalSchedule:
    """A Markov chain: each choice depends on the one before."""

    name: Literal["conditional"] = "conditional"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""
    after: tuple[AfterConfig, ...] = ()
    """Rows of the chain; after a task without a row, all tasks are alike."""


@dataclass(frozen=True)
class LearnedSchedule:
    """Choices that lead to reward of the main task become likely: a table over the choices before, Boltzmann's draw."""

    name: Literal["learned"] = "learned"
    """Which schedule this section configures."""
    period: int = 20
    """Steps of an episode between choices."""
    temperature: float = 360.0
    """Of the first episode, in units of the return."""
    temperature_decay: float = 0.9995
    """Factor per episode."""
    least_temperature: float = 0.1
    keep: float = 0.4
    """Share of an old value that a new return leaves."""
    gamma: float = 0.99
    """Discount per step of the main task's rewards."""


ScheduleConfig: TypeAlias = (
    FixedSchedule | UniformSchedule | WeightedSchedule | HandcraftedSchedule | ConditionalSchedule | LearnedSchedule
)


def schedule_from_data(data: Mapping[str, Any]) -> ScheduleConfig:
    """Return the schedule that ``to_dict`` described."""
    kinds: dict[str, type[ScheduleConfig]] = {kind.name: kind for kind in get_args(ScheduleConfig)}
    return override(kinds[data["name"]](), data)


def check_schedule(cfg: ScheduleConfig) -> None:
    """Refuse values that no schedule can honour; whether tasks have the names is known when it is made."""
    if cfg.period < 1:
        raise ConfigError(f"schedule.period must be at least 1, not {cfg.period}")
    for name in ("main", "chance", "temperature_decay", "keep", "gamma"):
        value = getattr(cfg, name, 0.0)
        if not 0 <= value <= 1:
            raise ConfigError(f"schedule.{name} must lie in [0, 1], not {value}")
    for name in ("temperature", "least_temperature"):
        if not getattr(cfg, name, 1.0) > 0:
            raise ConfigError(f"schedule.{name} must be above 0, not {getattr(cfg, name)}")


class Scheduler(Stateful, Protocol):
    """Chooses among K tasks, by their numbers."""

    learns: bool
    """Whether it is any use to tell it of episodes."""

    def choose(self, episode: int, history: Sequence[int]) -> int:
        """Return the task of the next period, given the episode's key and its choices so far."""
        ...

    def tell(self, choices: Sequence[int], main_rewards: Array) -> None:
        """Learn from an episode: its choices, and the main task's reward of each of its steps."""
        ...


class Untaught:
    """What a scheduler that learns nothing has in its place."""

    learns = False

    def tell(self, choices: Sequence[int], main_rewards: Array) -> None:
        """Learn nothing."""

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class FixedScheduler(Untaught):
    """One task all the time."""

    def __init__(self, task: int) -> None:
        self._task = task

    def choose(self, episode: int, history: Sequence[int]) -> int:
        """Return that task."""
        return self._task


class Markov(Untaught):
    """Draws from ``first [K]`` at the beginning, then from the row of ``after [K, K]`` of the task before."""

    def __init__(self, seed: int, first: Array, after: Array) -> None:
        self._seed, self._first, self._after = seed, first, after

    def choose(self, episode: int, history: Sequence[int]) -> int:
        """Draw a task."""
        return drawn(self._seed, episode, history, self._after[history[-1]] if history else self._first)


class Handcrafted(Untaught):
    """Follows one of its lists all episode, begun again at its end, or leaves an episode to another scheduler."""

    def __init__(self, seed: int, lists: Sequence[Sequence[int]], chance: float, other: Scheduler) -> None:
        self._seed, self._lists, self._chance, self._other = seed, lists, chance, other

    def choose(self, episode: int, history: Sequence[int]) -> int:
        """Return what the episode's list has next."""
        rng = stream(self._seed, "schedule-list", episode)
        if rng.random() >= self._chance:
            return self._other.choose(episode, history)
        tasks = self._lists[int(rng.integers(len(self._lists)))]
        return tasks[len(history) % len(tasks)]


class QTable:
    """Values of choices by the choices before them, of those histories only that have occurred."""

    learns = True

    def __init__(self, cfg: LearnedSchedule, num_tasks: int, seed: int) -> None:
        self._cfg, self._num_tasks, self._seed = cfg, num_tasks, seed
        self._table: dict[tuple[int, ...], list[float]] = {}
        self._episodes = 0

    @property
    def temperature(self) -> float:
        """How little values matter now."""
        cfg = self._cfg
        return max(cfg.least_temperature, cfg.temperature * cfg.temperature_decay**self._episodes)

    def values(self, history: Sequence[int]) -> list[float]:
        """Return the values of all tasks after a history; zero where nothing is known."""
        return self._table.get(tuple(history), [0.0] * self._num_tasks)

    def probabilities(self, history: Sequence[int]) -> Array:
        """Return Boltzmann's distribution of the values."""
        scaled = np.array(self.values(history)) / self.temperature
        likely: Array = np.exp(scaled - scaled.max())
        likely /= likely.sum()
        return likely

    def choose(self, episode: int, history: Sequence[int]) -> int:
        """Draw a task by its value."""
        return drawn(self._seed, episode, history, self.probabilities(history))

    def tell(self, choices: Sequence[int], main_rewards: Array) -> None:
        """Move the value of each choice towards the discounted return that followed it."""
        cfg = self._cfg
        for i, choice in enumerate(choices):
            rest = np.asarray(main_rewards[i * cfg.period :], np.float64)
            following = float(rest @ cfg.gamma ** np.arange(len(rest)))
            values = self._table.setdefault(tuple(choices[:i]), [0.0] * self._num_tasks)
            values[choice] = cfg.keep * values[choice] + (1 - cfg.keep) * following
        self._episodes += 1

    def state(self) -> State:
        """Return the table, with histories as text, and the episodes that it was told of."""
        table = {",".join(map(str, history)): list(values) for history, values in self._table.items()}
        return {"table": table, "episodes": self._episodes}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        saved = state["table"].items()
        self._table = {tuple(map(int, filter(None, text.split(",")))): list(values) for text, values in saved}
        self._episodes = int(state["episodes"])


def drawn(seed: int, episode: int, history: Sequence[int], probabilities: Array) -> int:
    """Return the task that the lot of this episode's next choice falls on."""
    lot = stream(seed, "schedule", episode, len(history)).random()
    # the last sum may fall short of 1 by rounding: what lies beyond belongs to the last task that is possible
    last = int(np.flatnonzero(probabilities)[-1])
    return min(int(np.searchsorted(np.cumsum(probabilities), lot, side="right")), last)


def make_scheduler(cfg: ScheduleConfig, tasks: Sequence[str], seed: int) -> Scheduler:
    """Return the scheduler that a config asks for, over these tasks."""
    check_schedule(cfg)
    if isinstance(cfg, FixedSchedule):
        return FixedScheduler(task_index(cfg.task or tasks[0], tasks, "schedule.task"))
    if isinstance(cfg, LearnedSchedule):
        return QTable(cfg, len(tasks), seed)
    if isinstance(cfg, ConditionalSchedule):
        first, *after = _chain(cfg, tasks)
        return Markov(seed, first, np.stack(after))
    main = 1.0 / len(tasks) if isinstance(cfg, UniformSchedule) else cfg.main
    other = _independent(main, len(tasks), seed)
    return _handcrafted(cfg, tasks, seed, other) if isinstance(cfg, HandcraftedSchedule) else other


def _independent(main: float, num_tasks: int, seed: int) -> Markov:
    """Return choices that do not depend on each other: the main task with a probability, the others alike."""
    rest = (1.0 - main) / max(1, num_tasks - 1)
    row = np.array([main if num_tasks > 1 else 1.0, *[rest] * (num_tasks - 1)])
    return Markov(seed, row, np.tile(row, (num_tasks, 1)))


def _handcrafted(cfg: HandcraftedSchedule, tasks: Sequence[str], seed: int, other: Scheduler) -> Handcrafted:
    lists = [[task_index(name, tasks, "schedule.lists") for name in text.split()] for text in cfg.lists]
    if not lists or not all(lists):
        raise ConfigError("schedule.lists needs at least one list of at least one task")
    return Handcrafted(seed, lists, cfg.chance, other)


def _chain(cfg: ConditionalSchedule, tasks: Sequence[str]) -> list[Array]:
    """Return the probabilities at the beginning, then those after each task."""
    rows: list[Array] = [np.full(len(tasks), 1.0 / len(tasks)) for _ in range(1 + len(tasks))]
    for after in cfg.after:
        weights = after.weights or (1.0,) * len(after.then)
        if len(weights) != len(after.then) or not sum(weights) > 0 or min(weights) < 0:
            what = f"{after.task or 'the beginning'} has tasks {list(after.then)} and weights {list(weights)}"
            raise ConfigError(f"schedule.after: {what}: as many of both, and none of them negative")
        row = np.zeros(len(tasks))
        for name, weight in zip(after.then, weights, strict=True):
            row[task_index(name, tasks, "schedule.after")] += weight
        rows[1 + task_index(after.task, tasks, "schedule.after") if after.task else 0] = row / row.sum()
    return rows
