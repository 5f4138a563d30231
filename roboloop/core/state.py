"""A checkpoint's nested state split into tensors (safetensors) and plain values (JSON), and joined again."""

from __future__ import annotations

from typing import Any

import numpy as np

from roboloop.core.types import Array, State

_TENSOR = "__tensor__"


def split(state: Any, prefix: str = "") -> tuple[dict[str, Array], Any]:
    """Return all array leaves by dotted name, and the same nesting with names in their place."""
    tensors: dict[str, Array] = {}

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, dict):
            return {str(k): walk(v, f"{name}.{k}" if name else str(k)) for k, v in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(v, f"{name}.{i}") for i, v in enumerate(node)]
        if isinstance(node, np.generic):
            return node.item()
        if hasattr(node, "shape"):
            # torch tensors are taken as numpy views: core does not import torch
            tensors[name] = np.ascontiguousarray(node if isinstance(node, np.ndarray) else node.detach().cpu().numpy())
            return {_TENSOR: name}
        return node

    return tensors, walk(state, prefix)


def join(tensors: dict[str, Array], tree: Any) -> Any:
    """Put the arrays back where ``split`` took them from."""
    if isinstance(tree, dict):
        if set(tree) == {_TENSOR}:
            return tensors[tree[_TENSOR]]
        return {k: join(tensors, v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [join(tensors, v) for v in tree]
    return tree


def equal(a: State, b: State) -> bool:
    """Say whether two states are identical bit for bit."""
    (ta, ja), (tb, jb) = split(a), split(b)
    return ja == jb and ta.keys() == tb.keys() and all(_same_bits(ta[k], tb[k]) for k in ta)


def _same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
