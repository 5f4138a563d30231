"""What a helper process keeps of a phase that changes memory in place, so that its death in the middle has no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from torch import Tensor

Changes = Mapping[str, Sequence[Tensor]]
"""Phase -> the tensors that a shard changes in it; each is flat."""


class Undo:
    """Copies of what one shard is about to change, in memory that outlives its process."""

    def __init__(self, changes: Changes, area: Tensor) -> None:
        self._pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for phase, tensors in changes.items():
            ends = list(accumulate(map(len, tensors), initial=0))
            self._pairs[phase] = [(area[a:b], live) for (a, b), live in zip(pairwise(ends), tensors, strict=True)]

    @staticmethod
    def size(changes: Changes) -> int:
        """Return how many floats the area must hold."""
        return max((sum(map(len, tensors)) for tensors in changes.values()), default=0)

    def is_needed(self, phase: str) -> bool:
        """Say whether a phase changes anything in place."""
        return bool(self._pairs[phase])

    def keep(self, phase: str) -> None:
        """Copy what the phase is about to change."""
        for kept, live in self._pairs[phase]:
            kept.copy_(live)

    def restore(self, phase: str) -> None:
        """Bring back what was copied."""
        for kept, live in self._pairs[phase]:
            live.copy_(kept)
