"""Recorded episodes as a torch ``Dataset``: whole episodes, or windows of equal length."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as MapDataset

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.data.windows import return_to_go
from roboloop.run.offline import dataset_path

Item = dict[str, Any]


class TorchDataset(MapDataset[Item]):
    """Item i is episode i; with ``window=K`` it is the K steps from the i-th step on, padded on the left.

    An item is a dict of tensors: ``obs``, ``action``, ``reward``, ``terminated``, ``truncated``, ``return_to_go``. An
    episode's ``obs`` has one row more than its other columns: the last observation. A window also has ``t``, the step
    within the episode, and ``mask``, false where it is padded. Observations that are records are dicts.
    """

    def __init__(self, path: str | os.PathLike[str], window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window must be at least 1, not {window}")
        self.path = dataset_path(os.fspath(path))
        self.window = window
        self._reader: Dataset | None = None
        self._owner = -1
        lengths = self.reader.table["length"]
        self._ends: Array = np.cumsum(lengths if window else np.ones(len(lengths), np.int64))
        # the rows of this view: what a writer adds or evicts later is not seen by any of its processes
        self._ids: list[int] = [self.reader.entry(row).id for row in range(len(self.reader))]

    @property
    def reader(self) -> Dataset:
        """The reader of this process; each worker of a ``DataLoader`` opens its own."""
        if self._reader is None or self._owner != os.getpid():
            self._reader, self._owner = Dataset.open(Path(self.path)), os.getpid()
            self._rows = {self._reader.entry(row).id: row for row in range(len(self._reader))}
        return self._reader

    def __len__(self) -> int:
        """Episodes, or windows: one for each step."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Item:
        """Return one item."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index %= len(self)
        place = int(np.searchsorted(self._ends, index, side="right"))
        reader = self.reader
        episode = reader.episode(self._rows[self._ids[place]])
        columns: dict[str, Array] = {
            "obs": episode.obs, "action": episode.action, "reward": episode.raw_reward,
            "terminated": episode.terminated, "truncated": episode.truncated,
            "return_to_go": return_to_go(episode.raw_reward),
        }  # fmt: skip
        if self.window is None:
            return {name: _tensors(column) for name, column in columns.items()}
        begin = index - (int(self._ends[place - 1]) if place else 0)
        return self._windowed(columns, begin, self.window)

    def _windowed(self, columns: dict[str, Array], begin: int, window: int) -> Item:
        count = min(window, len(columns["reward"]) - begin)
        columns["t"] = np.arange(len(columns["reward"]), dtype=np.int64)
        item: Item = {}
        for name, column in columns.items():
            padded = np.zeros((window, *column.shape[1:]), column.dtype)
            padded[window - count :] = column[begin : begin + count]
            item[name] = _tensors(padded)
        item["mask"] = torch.arange(window) >= window - count
        return item

    def __getstate__(self) -> dict[str, Any]:
        """Go to another process without open files."""
        return {**vars(self), "_reader": None, "_rows": {}}


def _tensors(column: Array) -> Any:
    """Return a tensor, or a dict of them for records."""
    if column.dtype.names is None:
        return torch.from_numpy(np.array(column))
    return {name: torch.from_numpy(np.array(column[name])) for name in column.dtype.names}
