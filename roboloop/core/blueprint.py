"""A policy from its blueprint: plain data in, the same policy in any process out."""

from __future__ import annotations

import importlib
from typing import Any

from roboloop.core.types import PortablePolicy


def kind_of(policy: object) -> str:
    """Return where another process finds the class."""
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def build_policy(blueprint: dict[str, Any]) -> PortablePolicy:
    """Build a policy from its blueprint."""
    module, name = blueprint["kind"].split(":")
    policy: PortablePolicy = getattr(importlib.import_module(module), name).from_blueprint(blueprint)
    return policy
