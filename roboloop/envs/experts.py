"""Scripted experts: policies that were written, not learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.resolve import load
from roboloop.core.types import Array, Decision, PortablePolicy


class FunctionExpert(WithoutWeights):
    """A policy from a function of observations ``[B, ...]`` that returns actions ``[B, A]``."""

    def __init__(self, path: str, arguments: list[str]) -> None:
        self._path, self._arguments = path, arguments
        self._act: Callable[[Array], Any] = load(path)(*arguments)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Ask the function; it never explores."""
        return Decision(np.asarray(self._act(obs), np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "path": self._path, "arguments": self._arguments}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> FunctionExpert:
        """Build the same policy anew."""
        return cls(data["path"], data["arguments"])


def make_expert(path: str, arguments: list[str]) -> PortablePolicy:
    """Return the policy that ``module:attr`` makes; a function of observations that it returns becomes one."""
    made = load(path)(*arguments)
    if hasattr(made, "act"):
        policy: PortablePolicy = made
        return policy
    return FunctionExpert(path, arguments)
