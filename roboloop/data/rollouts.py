"""Rollouts as values: parts of them, several side by side, as saved state; and the store that uses them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from roboloop.core.types import Array, EpisodeEnd, Rollout, State
from roboloop.data.journal import START, Frontier, Journal, Record

_PER_ENV = ("memory", "version")
COLUMNS = tuple(name for name in Rollout._fields if name not in ("episodes", "cut", "first_env"))
"""The fields of a rollout that are arrays; ``[T, B]`` but for those of _PER_ENV, which are ``[B]``."""


def rollout_over(arrays: Mapping[str, Any]) -> Rollout:
    """Return a rollout over the arrays of COLUMNS, without episodes."""
    return Rollout(**arrays, episodes=[])


def columns_of(rollout: Rollout, begin: int, end: int) -> Rollout:
    """Return a view of some environments of a rollout; what is written to it is written to the rollout."""
    views = {n: getattr(rollout, n)[begin:end] if n in _PER_ENV else getattr(rollout, n)[:, begin:end] for n in COLUMNS}
    return rollout_over(views)._replace(first_env=rollout.first_env + begin)


def is_step(rollout: Rollout) -> Array:
    """Return which rows ``[T, B]`` are steps of an episode; in others an environment was being reset."""
    steps = np.ones(rollout.reward.shape, bool)
    for end in rollout.episodes:
        if not end.length:
            steps[end.t, end.env - rollout.first_env] = False
    return steps


def side_by_side(parts: Sequence[Rollout]) -> Rollout:
    """Return several rollouts of equal length as one; episodes are renumbered to the columns they now have."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=0 if name in _PER_ENV else 1)
        for name in COLUMNS
    }
    episodes: list[EpisodeEnd] = []
    begin = 0
    for part in parts:
        episodes += [end._replace(env=end.env - part.first_env + begin) for end in part.episodes]
        begin += part.reward.shape[1]
    return rollout_over(arrays)._replace(episodes=episodes)


def lost_envs(numbers: Sequence[Any], envs: range) -> tuple[int, ...]:
    """Return those of ``envs`` among the environments that a state says have lost their episode."""
    if not all(type(number) is int for number in numbers):
        raise ValueError("lost episodes are listed by the numbers of their environments")
    return tuple(number for number in numbers if number in envs)


def rollout_to_state(rollout: Rollout) -> State:
    """Return a rollout as copies that a checkpoint can hold."""
    arrays = {name: np.array(getattr(rollout, name)) for name in COLUMNS}
    ends = [end._asdict() for end in rollout.episodes]
    return {**arrays, "episodes": ends, "cut": list(rollout.cut), "first_env": rollout.first_env}


def rollout_from_state(state: State) -> Rollout:
    """Return the rollout that ``rollout_to_state`` described."""
    episodes = [EpisodeEnd(**end) for end in state["episodes"]]
    envs = range(state["first_env"], state["first_env"] + state["reward"].shape[1])
    return Rollout(**{**state, "episodes": episodes, "cut": lost_envs(state["cut"], envs)})


class RolloutStore:
    """Gathers rollouts until there are ``num_columns`` columns; they are learned from once and then dropped."""

    journaled = False
    """Nothing in here outlives an iteration, so there is nothing to keep on disk beyond the checkpoint itself."""

    def __init__(self, num_columns: int) -> None:
        self._num_columns = num_columns
        self._parts: list[Rollout] = []

    def add(self, rollout: Rollout) -> None:
        """Take a rollout; one that is not used at once is copied, since samplers reuse their arrays."""
        whole = not self._parts and rollout.reward.shape[1] >= self._num_columns
        self._parts.append(rollout if whole else rollout_from_state(rollout_to_state(rollout)))

    @property
    def is_full(self) -> bool:
        """Whether there is enough to learn from."""
        return sum(int(part.reward.shape[1]) for part in self._parts) >= self._num_columns

    def sample(self) -> Rollout:
        """Return everything gathered, and forget it."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else side_by_side(parts)

    def attach(self, journal: Journal) -> None:
        """Keep nothing."""

    def commit(self) -> Frontier:
        """Return the beginning of a journal that is never written."""
        return START

    def state(self) -> State:
        """Return what was gathered and not yet used."""
        return {"parts": [rollout_to_state(part) for part in self._parts]}

    def load(self, state: State, records: Iterable[Record]) -> None:
        """Restore what was gathered."""
        self._parts = [rollout_from_state(part) for part in state["parts"]]
