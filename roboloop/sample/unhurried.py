"""What a sampler answers whose environments wait for their caller."""

from __future__ import annotations

from typing import Any, ClassVar

from roboloop.core.types import Rollout


class NotRealTime:
    """Nothing moves between two calls."""

    in_tick: ClassVar[bool] = False

    def rest(self) -> list[Rollout]:
        """Return nothing: all stand still already."""
        return []

    def timing(self) -> dict[str, Any]:
        """Return nothing: there are no deadlines."""
        return {}
