"""What is wrong with a dataset, episode by episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from roboloop.core.errors import DataError
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import end_fault, return_fault


class Fault(NamedTuple):
    """One episode that cannot be trusted."""

    id: int
    what: str


def faults(dataset: Dataset) -> Iterator[Fault]:
    """Read everything and yield what is wrong: checksums, lengths, where episodes end, returns on record."""
    for row in range(len(dataset)):
        entry = dataset.entry(row)
        try:
            episode = dataset.episode(row)
        except DataError as error:
            yield Fault(entry.id, str(error).partition(" is damaged: ")[2] or str(error))
            continue
        fault = end_fault(episode) or return_fault(episode, entry.facts)
        if fault:
            yield Fault(entry.id, fault)
