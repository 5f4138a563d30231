"""The memory between training and the writer of a dataset: packets in order, one puts, one takes, nobody waits."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.memory import LINE_BYTES, ByteLayout, Columns, SharedMemory
from roboloop.core.types import Array, EnvSpec, EpisodeEnd, Rollout

_WORDS = LINE_BYTES // 8
_PUT, _TAKEN, _COMMIT = 0, 1, 2  # lines of the head: each word that one side writes has a cache line of its own
_WRAP = -1

STEP_COLUMNS = ("action", "reward", "raw_reward", "terminated", "truncated", "log_prob", "value")
"""Columns of a rollout that a packet takes over as they are, ``[T, K]``; observations are cut to the newest frame."""

END = np.dtype(
    [
        ("column", np.int64), ("t", np.int64), ("env", np.int64), ("episode", np.int64), ("length", np.int64),
        ("step", np.int64), ("episode_return", np.float64), ("shaped_return", np.float64), ("success", np.float64),
        ("is_expert", bool), ("is_lost", bool), ("goes_on", bool),
    ]
)  # fmt: skip
"""What a packet says of an episode that ended; ``goes_on``: the one that begins behind it is recorded."""


def end_row(end: EpisodeEnd, rollout: Rollout, step: int, is_expert: bool, goes_on: bool) -> tuple[Any, ...]:
    """Return a row of ``END``, given the run's step at the end of the rollout."""
    steps, count = rollout.reward.shape
    at = step - (steps - 1 - end.t) * count
    numbers = (end.episode_return, end.shaped_return, end.success)
    column = end.env - rollout.first_env
    return (column, end.t, end.env, end.episode, end.length, at, *numbers, is_expert, end.lost, goes_on)


COUNTS = (
    "recorded_episodes", "recorded_steps", "evicted_episodes", "evicted_steps", "rolled_back", "turned_away",
    "too_large", "lost", "torn", "raw_bytes", "stored_bytes", "disk_bytes",
)  # fmt: skip
"""What the writer says of itself, in words that training may read at any time."""
DROPS = ("backpressure", "throttled", "restart")
"""Why training dropped episodes; the writer adds them to the dataset's own counts."""


class Packet(NamedTuple):
    """T steps of K environments, and the E episodes that ended in them."""

    env: Array  # [K]
    is_on: Array  # [K] whether row 0 belongs to an episode that is recorded
    is_fresh: Array  # [K] whether row 0 begins an episode
    version: Array  # [K]
    obs: Array  # [T, K, ...]
    action: Array  # [T, K, A]
    reward: Array
    raw_reward: Array
    terminated: Array
    truncated: Array
    log_prob: Array
    value: Array
    ends: Array  # [E] of END, in the order of time within each column
    last_obs: Array  # [E, ...]


def layout_of(spec: EnvSpec, steps: int, columns: int, ends: int) -> ByteLayout:
    """Return where the arrays of a packet lie within it."""
    lead, one = (steps, columns), np.dtype(np.float32)
    obs_shape, obs_dtype = tuple(spec.obs_shape), np.dtype(spec.obs_dtype)
    arrays: Columns = {
        "env": ((columns,), np.dtype(np.int64)),
        "is_on": ((columns,), np.dtype(bool)),
        "is_fresh": ((columns,), np.dtype(bool)),
        "version": ((columns,), np.dtype(np.int64)),
        "obs": ((*lead, *obs_shape), obs_dtype),
        "action": ((*lead, spec.action_dim), one),
        "reward": (lead, one),
        "raw_reward": (lead, one),
        "terminated": (lead, np.dtype(bool)),
        "truncated": (lead, np.dtype(bool)),
        "log_prob": (lead, one),
        "value": (lead, one),
        "ends": ((ends,), END),
        "last_obs": ((ends, *obs_shape), obs_dtype),
    }
    return ByteLayout(arrays)


class Ring:
    """Packets one behind another in a fixed stretch of bytes; one that does not fit is refused at once."""

    def __init__(self, num_bytes: int, spec: EnvSpec, memory: SharedMemory | None = None) -> None:
        self.layout = lru_cache(maxsize=256)(partial(layout_of, spec))
        """Where the arrays of a packet lie, by steps, columns and ends."""
        head = ByteLayout(
            {
                "marks": ((3, _WORDS), np.dtype(np.int64)),
                "counts": ((len(COUNTS),), np.dtype(np.int64)),
                "drops": ((len(DROPS),), np.dtype(np.int64)),
                "beats": ((_WORDS,), np.dtype(np.int64)),
            }
        )
        self._begin = head.num_bytes
        self._size = num_bytes // LINE_BYTES * LINE_BYTES
        self.memory = memory or SharedMemory.create(self._begin + self._size)
        views = head.views(self.memory)
        self._marks, self.counts, self.drops, self.beats = (views[n] for n in ("marks", "counts", "drops", "beats"))
        self._words = np.ndarray((self._size // 8,), np.int64, buffer=self.memory.map, offset=self._begin)
        self._reserved = 0

    def reserve(self, steps: int, columns: int, ends: int) -> Packet | None:
        """Return a packet to fill, or None if there is no room for it now; others see it after ``publish``."""
        layout = self.layout(steps, columns, ends)
        needed = LINE_BYTES + layout.num_bytes
        put, taken = self._mark(_PUT), self._mark(_TAKEN)
        at = put % self._size
        skipped = self._size - at if at + needed > self._size else 0  # packets do not wrap around
        if skipped + needed > self._size - (put - taken):
            return None
        if skipped:
            self._words[at // 8] = _WRAP
            at = 0
        self._words[at // 8 : at // 8 + 4] = needed, steps, columns, ends
        self._reserved = put + skipped + needed
        return Packet(**layout.views(self.memory, self._begin + at + LINE_BYTES))

    def publish(self) -> None:
        """Let the reserved packet be taken."""
        self._marks[_PUT, 0] = self._reserved

    def peek(self) -> Packet | None:
        """Return the oldest packet, which stays in place until ``release``."""
        put, taken = self._mark(_PUT), self._mark(_TAKEN)
        if taken < put and self._words[taken % self._size // 8] == _WRAP:
            taken += self._size - taken % self._size
            self._marks[_TAKEN, 0] = taken
        if taken >= put:
            return None
        at = taken % self._size
        _, steps, columns, ends = self._words[at // 8 : at // 8 + 4].tolist()
        return Packet(**self.layout(steps, columns, ends).views(self.memory, self._begin + at + LINE_BYTES))

    def release(self) -> None:
        """Give back the room of the packet that ``peek`` returned."""
        taken = self._mark(_TAKEN)
        self._marks[_TAKEN, 0] = taken + int(self._words[taken % self._size // 8])

    def _mark(self, line: int) -> int:
        return int(self._marks[line, 0])

    def ask_for_commit(self) -> None:
        """Ask the writer to commit everything that was put so far; nobody waits for it."""
        self._marks[_COMMIT, 0] = self._marks[_PUT, 0]

    def commit_is_due(self, since: int) -> int:
        """Return up to where a commit was asked for, if it was after ``since`` and all of that has been taken."""
        asked = self._mark(_COMMIT)
        return asked if since < asked <= self._mark(_TAKEN) else 0

    @property
    def use(self) -> float:
        """The fraction that is waiting to be taken."""
        return (self._mark(_PUT) - self._mark(_TAKEN)) / self._size

    def reset(self) -> None:
        """Forget what has not been taken; only while nobody takes."""
        self._marks[:] = 0
        self.drops[:] = 0
