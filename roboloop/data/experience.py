"""The episodes in a replay journal: rows of all environments, joined across records into whole episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from roboloop.core.types import Array
from roboloop.data.episodes import COLUMNS, Episode, Facts, facts_of
from roboloop.data.journal import Record
from roboloop.data.replay import FINAL, TERMINATED, TRUNCATED

Rows = dict[str, Array]


class Streams:
    """Takes a journal's records one after another; holds one of them and the running episode of each environment."""

    def __init__(self, task: str, seed: int) -> None:
        self._task, self._seed = task, seed
        self._open: dict[int, list[Rows]] = {}
        self._numbers: Counter[int] = Counter()  # episodes per environment
        self._step = 0
        self.left_out: Counter[str] = Counter()

    def episodes(self, records: Iterable[Record]) -> Iterator[tuple[Episode, Facts]]:
        """Yield whole episodes in the order in which they ended; what runs on at the end is left out."""
        for columns, info in records:
            counts = info["rows_per_env"]
            bounds = np.cumsum([0, *counts]).tolist()
            spans = [{name: column[begin:end] for name, column in columns.items()} for begin, end in pairwise(bounds)]
            steps = np.array([int((rows["flags"] != FINAL).sum()) for rows in spans])
            ended = [end for env, rows in enumerate(spans) for end in self._split(env, rows)]
            # side by side: when an environment had taken so many steps of the record, the others had too
            for taken, env, number, rows in sorted(ended, key=lambda end: end[:2]):
                step = self._step + int(np.minimum(taken, steps).sum())
                episode = _episode(rows)
                yield episode, facts_of(episode, env, number, step, self._task, self._seed)
            self._step += int(steps.sum())
        running = sum(len(rows["flags"]) for pieces in self._open.values() for rows in pieces)
        if running:
            self.left_out["steps of episodes that had not ended"] += running

    def _split(self, env: int, rows: Rows) -> Iterator[tuple[int, int, int, Rows]]:
        """Yield the episodes that end in a stretch of rows: steps taken until then, environment, number, all rows."""
        begin = 0
        for final in np.flatnonzero(rows["flags"] == FINAL).tolist():
            pieces = [*self._open.pop(env, []), {name: column[begin : final + 1] for name, column in rows.items()}]
            whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in rows}
            begin = final + 1
            number = self._numbers[env]
            self._numbers[env] += 1
            if whole["age"][0]:
                self.left_out["episodes without their beginning"] += 1
                continue
            yield int((rows["flags"][:begin] != FINAL).sum()), env, number, whole
        if begin < len(rows["flags"]):
            self._open.setdefault(env, []).append({name: column[begin:].copy() for name, column in rows.items()})


def _episode(rows: Rows) -> Episode:
    flags, steps = rows["flags"][:-1], len(rows["flags"]) - 1
    truncated = (flags & TRUNCATED) != 0
    truncated[-1] |= not flags[-1]  # lost after its last row had been kept; replay takes it as truncated too
    reward = rows["reward"][:-1]
    unknown = {name: np.zeros(steps, COLUMNS[name]) for name in ("log_prob", "value", "version")}
    return Episode(
        obs=rows["obs"], action=rows["action"][:-1], reward=reward, raw_reward=reward,
        terminated=(flags & TERMINATED) != 0, truncated=truncated, **unknown,
    )  # fmt: skip
