"""Settings of the store."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class ReplayConfig:
    """How much experience training may look back on, and how it is kept."""

    capacity: int = 1_000_000
    """Rows over all environments; an episode takes one row more than it has steps."""
    segment_mb: int = 64
    """Size at which a journal file is sealed and the next one begun."""

    def check(self, num_envs: int, batch_size: int) -> None:
        """Refuse a ring too small to sample from."""
        if self.capacity < max(2 * batch_size, 16 * num_envs):
            raise ConfigError(f"replay.capacity {self.capacity} is too small for batches of {batch_size}")
        if self.segment_mb < 1:
            raise ConfigError(f"replay.segment_mb must be at least 1, not {self.segment_mb}")
