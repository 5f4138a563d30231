"""Options of our trackers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WandbConfig:
    """Where Weights & Biases keeps the run."""

    project: str = "roboloop"
    """Project of the run."""
    entity: str = ""
    """User or team that owns the project; empty = your default at W&B."""


@dataclass(frozen=True)
class TrackioConfig:
    """Where Trackio keeps the run."""

    project: str = "roboloop"
    """Project of the run."""
