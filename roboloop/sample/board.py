"""The memory that a sampler and its workers share: rollouts, weights and heartbeats. Messages carry only indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roboloop.core.memory import ByteLayout, SharedMemory
from roboloop.core.types import Array, PortablePolicy, Rollout
from roboloop.data.rollouts import columns_of, rollout_over
from roboloop.sample.buffers import RolloutShape, poison

WORDS_PER_LINE = 8


class SharedBoard:
    """Views of the shared memory; both sides lay it out from the same numbers."""

    def __init__(
        self,
        shape: RolloutShape,
        slots: int,
        weight_sizes: Sequence[int],
        workers: int,
        memory: SharedMemory | None = None,
    ) -> None:
        self._shape = shape
        columns: dict[str, Any] = {"beats": ((workers, WORDS_PER_LINE), np.dtype(np.int64))}
        for policy, size in enumerate(weight_sizes):
            columns[f"weights{policy}"] = ((2, size), np.dtype(np.float32))
            columns[f"published{policy}"] = ((WORDS_PER_LINE,), np.dtype(np.int64))
        rollout, head = shape.layout(), ByteLayout(columns)
        self.num_bytes = head.num_bytes + slots * rollout.num_bytes
        self.memory = memory or SharedMemory.create(self.num_bytes)
        views = head.views(self.memory)
        self.beats = views["beats"]
        self._weights = [views[f"weights{i}"] for i in range(len(weight_sizes))]
        self._published = [views[f"published{i}"] for i in range(len(weight_sizes))]
        self._slots: list[Rollout] = []
        for slot in range(slots):
            arrays = rollout.views(self.memory, head.num_bytes + slot * rollout.num_bytes)
            if memory is None:
                poison(arrays)
            self._slots.append(rollout_over(arrays))

    def whole(self, slot: int) -> Rollout:
        """Return the rollout of all environments in a slot."""
        return self._slots[slot]

    def part(self, slot: int, first_env: int, num_envs: int) -> Rollout:
        """Return the columns of some environments in a slot."""
        return columns_of(self._slots[slot], first_env, first_env + num_envs)

    def publish(self, policy: int, source: PortablePolicy) -> None:
        """Write weights into the slot that nobody reads, then say that they are there."""
        words = self._published[policy]
        count = int(words[0]) + 1
        source.write_weights(self._weights[policy][count % 2])
        words[1 + count % 2] = source.version
        words[0] = count

    def is_published(self, policy: int, version: int) -> bool:
        """Say whether the newest published weights are of this version."""
        words = self._published[policy]
        return bool(words[0] > 0 and words[1 + words[0] % 2] == version)

    def fetch(self, policy: int, seen: int, target: PortablePolicy) -> int:
        """Give a policy the newest weights unless it has them already; return how often they have been published."""
        words: Array = self._published[policy]
        while (count := int(words[0])) != seen:
            target.read_weights(self._weights[policy][count % 2], int(words[1 + count % 2]))
            seen = count if int(words[0]) == count else -1  # published again meanwhile: the copy may be torn
        return seen
