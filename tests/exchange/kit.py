"""Datasets to exchange, and what must be equal after a way there and back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from tests.data.kit import episode_of, same, schema_of

MIXED = {
    "one choice": ((5,), (0.0,), (4.0,)),
    "choices": ((5, 3), (0.0, 0.0), (4.0, 2.0)),
    "mixed": ((0, 3), (-1.0, 0.0), (1.0, 2.0)),
}


def fill_choices(directory: Path, name: str, numbers: range) -> None:
    """Write episodes whose actions are choices, or choices beside numbers."""
    choices, low, high = MIXED[name]
    spec = dataclasses.replace(schema_of().spec, action_choices=choices, action_low=low, action_high=high)
    with StoreWriter(directory, schema_of(spec=spec)) as writer:
        for number in numbers:
            episode, facts = episode_of(number)
            draw = np.random.default_rng(number).integers(0, 3, (len(episode.reward), len(choices)))
            action = np.where(np.array(choices) > 0, draw, episode.action[:, : len(choices)])
            writer.append(episode._replace(action=action.astype(np.float32)), facts)


def there_and_back(source: Path, name: str, file: Path, target: Path) -> None:
    assert main(["dataset", "export", str(source), str(file), "--format", name]) == 0
    assert main(["dataset", "import", str(file), str(target), "--format", name]) == 0


def assert_equal(a: Path, b: Path) -> None:
    """Schema, facts and every column of every episode, bit for bit."""
    one, two = Dataset.open(a), Dataset.open(b)
    assert not one.schema.difference(two.schema)
    assert one.schema == two.schema
    assert len(one) == len(two) > 0
    for row in range(len(one)):
        assert one.entry(row).facts.to_data() == two.entry(row).facts.to_data()
        assert same(one.episode(row), two.episode(row)), row
