"""Single transitions of a dataset, thinned out as imitation learning likes them.

Datasets keep whole episodes, because only those can be verified (where they end, what they returned), and because
observations are then stored once. Leaving steps out is a way of reading: the same data serve every rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Facts


class Transitions(NamedTuple):
    """N steps, in the order of their episodes."""

    obs: Array
    action: Array
    raw_reward: Array
    next_obs: Array  # the true successor, also where the episode ended
    terminated: Array  # the world ended: the value of next_obs is zero
    truncated: Array


def every_kth(dataset: Dataset, every: int, seed: int, rows: Array | None = None, skip: int = 0) -> Transitions:
    """Return each k-th transition of some episodes, or of all; where it begins is drawn for each episode.

    At least one step of an episode is kept, and none of its first ``skip`` steps. The draw belongs to the episode,
    whatever others the dataset holds.
    """
    if every < 1:
        raise DataError(f"each {every}-th transition of {dataset.directory} is nothing")
    return _gathered(dataset, rows, skip, lambda facts: slice(first_of(facts, every, seed, skip), None, every))


def first_of(facts: Facts, every: int, seed: int, skip: int) -> int:
    """Return the step of an episode that each k-th one is counted from."""
    names = (facts.segment, facts.env, facts.episode)
    return skip + int(stream(seed, "every_kth", *names).integers(min(every, facts.length - skip)))


def finals(dataset: Dataset, rows: Array | None = None, skip: int = 0) -> Transitions:
    """Return the last transition of some episodes, or of all."""
    return _gathered(dataset, rows, skip, lambda facts: slice(facts.length - 1, None))


def _gathered(dataset: Dataset, rows: Array | None, skip: int, chosen: Callable[[Facts], slice]) -> Transitions:
    rows = np.arange(len(dataset)) if rows is None else rows
    if not len(rows):
        raise DataError(f"{dataset.directory} has no episodes to take transitions of")
    parts = []
    for row in rows.tolist():
        facts, episode = dataset.entry(row).facts, dataset.episode(row)
        if facts.length <= skip:
            raise DataError(f"an episode of {facts.length} steps in {dataset.directory} has nothing after {skip} steps")
        steps = chosen(facts)
        parts.append(
            Transitions(
                episode.obs[:-1][steps], episode.action[steps], episode.raw_reward[steps], episode.obs[1:][steps],
                episode.terminated[steps], episode.truncated[steps],
            )
        )  # fmt: skip
    return Transitions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
