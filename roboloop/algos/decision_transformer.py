"""Decision Transformer (arXiv:2106.01345): what to do next, given what happened and the return that is to come."""

from __future__ import annotations

from roboloop.algos.config import DTConfig
from roboloop.algos.imitation import DataScale, Imitation, return_scale_of
from roboloop.algos.imitation_policy import ImitationModel
from roboloop.core.types import EnvSpec

__all__ = ["DataScale", "decision_transformer", "return_scale_of"]


def decision_transformer(
    cfg: DTConfig, spec: EnvSpec, scale: DataScale, target: float, seed: int, device: str = "cpu"
) -> Imitation:
    """Return the Algorithm; its policy is told to reach the return ``target``, in raw reward."""
    return Imitation(ImitationModel(cfg, spec), scale, target, seed, device)
