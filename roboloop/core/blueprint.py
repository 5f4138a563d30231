"""A policy from its blueprint: plain data in, the same policy in any process out."""

from __future__ import annotations

import importlib
from typing import Any

from roboloop.core.types import Array, PortablePolicy


class WithoutWeights:
    """What a policy that learned nothing has in their place."""

    memory_size = 0
    version = 0
    num_weights = 0

    def write_weights(self, out: Array) -> None:
        """Write nothing."""

    def read_weights(self, flat: Array, version: int) -> None:
        """Read nothing."""


def kind_of(policy: object) -> str:
    """Return where another process finds the class."""
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def build_policy(blueprint: dict[str, Any]) -> PortablePolicy:
    """Build a policy from its blueprint."""
    module, name = blueprint["kind"].split(":")
    policy: PortablePolicy = getattr(importlib.import_module(module), name).from_blueprint(blueprint)
    return policy
