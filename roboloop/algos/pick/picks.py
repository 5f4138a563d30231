"""What an environment offers to pick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from roboloop.core.errors import ConfigError
from roboloop.core.fields import IMAGE, PICKS, VECTOR
from roboloop.core.types import EnvSpec


@dataclass(frozen=True)
class PickLayout:
    """What is offered: ``num`` candidates of ``dim`` numbers each, in the units of an action's first columns."""

    num: int
    dim: int
    is_choice: bool
    """Whether the candidates are the K things themselves, one-hot, and not places."""

    @classmethod
    def of(cls, spec: EnvSpec) -> PickLayout:
        """Read it off an environment's spec."""
        fields: Mapping[str, Any] = spec.obs_dtype.fields or {}
        if PICKS not in fields:
            raise ConfigError("algo 'pick' needs observations with candidate picks: set env.soft.pick: chosen")
        if set(fields) - {PICKS, IMAGE, VECTOR}:
            raise ConfigError(f"algo 'pick' knows the fields image, vector and picks, not {', '.join(fields)}")
        num, dim = fields[PICKS][0].shape
        if dim >= spec.action_dim:
            raise ConfigError(f"picks have {dim} numbers, and actions only {spec.action_dim}: nothing is left to place")
        is_choice = spec.protocol.get("pick") == "corner"
        if is_choice and num != dim:
            raise ConfigError(f"picks that are choices are one-hot: {num} candidates cannot have {dim} numbers")
        return cls(num, dim, is_choice)


def at(rows: Tensor, index: Tensor) -> Tensor:
    """Return the chosen one of each row's, ``[N, P]``, of ``[N, K, P]``."""
    return rows.gather(1, index.view(-1, 1, 1).expand(-1, 1, rows.shape[2])).squeeze(1)
