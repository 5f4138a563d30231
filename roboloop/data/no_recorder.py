"""What stands where episodes are not recorded."""

from __future__ import annotations

from pathlib import Path

from roboloop.core.types import Rollout, State


class NoRecorder:
    """No recorder, no process, nothing on disk."""

    def begin(self, directory: Path, step: int) -> None:
        """Do nothing."""

    def offer(self, rollout: Rollout, step: int) -> None:
        """Take nothing."""

    def saw_evaluation(self, episode_return: float) -> None:
        """Remember nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def messages(self) -> list[str]:
        """Say nothing."""
        return []

    def stats(self) -> dict[str, float]:
        """Count nothing."""
        return {}

    def timing(self) -> dict[str, float]:
        """Count nothing."""
        return {}

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""

    def close(self) -> None:
        """Do nothing."""
