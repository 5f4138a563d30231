"""A checkpoint's nested state split into tensors (safetensors) and plain values (JSON), and joined again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roboloop.core.types import Array, EnvSpec, State

_TENSOR, _DTYPE = "__tensor__", "__dtype__"


def split(state: Any, prefix: str = "") -> tuple[dict[str, Array], Any]:
    """Return all array leaves by dotted name, and the same nesting with names in their place."""
    tensors: dict[str, Array] = {}

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, dict):
            return {str(k): walk(v, f"{name}.{k}" if name else str(k)) for k, v in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(v, f"{name}.{i}") for i, v in enumerate(node)]
        if isinstance(node, np.generic) and not isinstance(node, np.void):  # one record is an array too
            return node.item()
        if hasattr(node, "shape"):
            # torch tensors are taken as numpy views: core does not import torch
            is_numpy = isinstance(node, np.ndarray | np.void)
            array = np.asarray(node if is_numpy else node.detach().cpu().numpy(), order="C")
            if array.dtype.names is None:
                tensors[name] = array
                return {_TENSOR: name}
            # records (observations with named fields) travel as bytes: safetensors knows plain numbers only
            tensors[name] = array[..., None].view(np.uint8)
            return {_TENSOR: name, _DTYPE: dtype_to_data(array.dtype)}
        return node

    return tensors, walk(state, prefix)


def join(tensors: dict[str, Array], tree: Any) -> Any:
    """Put the arrays back where ``split`` took them from."""
    if isinstance(tree, dict):
        if _TENSOR in tree:
            array = tensors[tree[_TENSOR]]
            return array.view(dtype_from_data(tree[_DTYPE]))[..., 0] if _DTYPE in tree else array
        return {k: join(tensors, v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [join(tensors, v) for v in tree]
    return tree


def counts_from(state: Mapping[str, Any]) -> dict[str, int]:
    """Return saved counters; what is no number is a TypeError or a ValueError."""
    return {name: int(count) for name, count in state.items()}


def dtype_to_data(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as JSON values: a name, or a list of named fields with their shapes."""
    if dtype.fields is None:
        return dtype.str
    return [[name, kind.base.str, list(kind.shape)] for name, (kind, *_) in dtype.fields.items()]


def dtype_from_data(data: Any) -> np.dtype[Any]:
    """Return the dtype that ``dtype_to_data`` described."""
    return np.dtype(data if isinstance(data, str) else [(name, kind, tuple(shape)) for name, kind, shape in data])


def spec_to_data(spec: EnvSpec) -> dict[str, Any]:
    """Return a spec as plain data that JSON can carry."""
    # data of one task is what it was before there were several
    tasks = {"tasks": list(spec.tasks), "one_task_each": spec.one_task_each} if spec.tasks else {}
    return {
        "obs_shape": list(spec.obs_shape),
        "obs_dtype": dtype_to_data(spec.obs_dtype),
        "action_low": list(spec.action_low),
        "action_high": list(spec.action_high),
        "max_episode_steps": spec.max_episode_steps,
        "protocol": dict(spec.protocol),
        "action_choices": list(spec.action_choices),
        **tasks,
    }


def spec_from_data(data: dict[str, Any]) -> EnvSpec:
    """Return the spec that ``spec_to_data`` described."""
    names = ("obs_shape", "action_low", "action_high", "action_choices", "tasks")
    tuples = {n: tuple(data[n]) for n in names if n in data}
    return EnvSpec(**{**data, **tuples, "obs_dtype": dtype_from_data(data["obs_dtype"])})


def equal(a: State, b: State) -> bool:
    """Say whether two states are identical bit for bit."""
    (ta, ja), (tb, jb) = split(a), split(b)
    return ja == jb and ta.keys() == tb.keys() and all(_same_bits(ta[k], tb[k]) for k in ta)


def _same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
