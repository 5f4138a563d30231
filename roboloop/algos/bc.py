"""Behaviour cloning: the action of each step from its observation alone, whatever it led to."""

from __future__ import annotations

from roboloop.algos.config import BCConfig
from roboloop.algos.imitation import DataScale, Imitation
from roboloop.algos.imitation_policy import ImitationModel
from roboloop.core.types import EnvSpec

__all__ = ["DataScale", "behaviour_cloning"]


def behaviour_cloning(cfg: BCConfig, spec: EnvSpec, scale: DataScale, seed: int, device: str = "cpu") -> Imitation:
    """Return the Algorithm; it learns from all valid steps of its windows, and returns mean nothing to it."""
    return Imitation(ImitationModel(cfg, spec), scale, 0.0, seed, device)
