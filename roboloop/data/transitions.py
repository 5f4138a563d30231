"""Single transitions of a dataset, thinned out as imitation learning likes them.

Datasets keep whole episodes, because only those can be verified (where they end, what they returned), and because
observations are then stored once. Leaving steps out is a way of reading: the same data serve every rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset


class Transitions(NamedTuple):
    """N steps, in the order of their episodes."""

    obs: Array
    action: Array
    raw_reward: Array
    next_obs: Array  # the true successor, also where the episode ended
    terminated: Array  # the world ended: the value of next_obs is zero
    truncated: Array


def every_kth(dataset: Dataset, every: int, seed: int, rows: Array | None = None) -> Transitions:
    """Return each k-th transition of some episodes, or of all; where it begins is drawn for each episode.

    At least one step of an episode is kept. The draw belongs to the episode, whatever others the dataset holds.
    """
    rows = np.arange(len(dataset)) if rows is None else rows
    if every < 1 or not len(rows):
        raise DataError(f"each {every}-th transition of {len(rows)} episodes of {dataset.directory} is nothing")
    parts = []
    for row in rows.tolist():
        facts, episode = dataset.entry(row).facts, dataset.episode(row)
        names = (facts.segment, facts.env, facts.episode)
        first = int(stream(seed, "every_kth", *names).integers(min(every, facts.length)))
        steps = slice(first, None, every)
        parts.append(
            Transitions(
                episode.obs[:-1][steps], episode.action[steps], episode.raw_reward[steps], episode.obs[1:][steps],
                episode.terminated[steps], episode.truncated[steps],
            )
        )  # fmt: skip
    return Transitions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
