"""From a policy that PPO learned to one that never changes and needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from roboloop.algos.ppo.policy import PPOModel, PPOPolicy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, PortablePolicy
from roboloop.envs.frozen import FrozenPolicy, Layers
from roboloop.nets.actions import LOG_STD_MAX, LOG_STD_MIN
from roboloop.nets.flat import Views
from roboloop.nets.layers import as_in_out
from roboloop.nets.normalize import CLIP


def freeze(policy: PortablePolicy, std: float | None = None, about: Mapping[str, Any] | None = None) -> FrozenPolicy:
    """Return what acts as a policy of PPO does; ``std`` is its deviation instead of what was learned."""
    if not isinstance(policy, PPOPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot be frozen: only policies of PPO can")
    if std is not None and not 0 < std < math.inf:
        raise ConfigError(f"the deviation of a frozen policy must be above 0, not {std}")
    model, state = PPOModel.from_data(policy.blueprint()), policy.state()
    if not model.spec.is_continuous or model.fields.pictures or model.spec.obs_dtype.names or model.net.core != "none":
        raise ConfigError("only policies of plain observations, continuous actions and no memory can be frozen")
    views: Views = state["net"]
    names = _layer_names(model)
    weights = [_array(as_in_out(views[f"{name}.weight"], views[f"{name}.bias"])) for name in names]
    biases = [_array(views[f"{name}.bias"]) for name in names]
    action_dim = model.spec.action_dim
    log_std = np.zeros(0, np.float32) if "log_std" not in views else _array(views["log_std"])
    log_std = log_std.clip(LOG_STD_MIN, LOG_STD_MAX) if std is None else np.full(action_dim, math.log(std), np.float32)
    # the last layer may say deviations behind the means, and in a shared network the value behind both
    outputs = action_dim if log_std.size else 2 * action_dim
    weights[-1], biases[-1] = weights[-1][:, :outputs].copy(), biases[-1][:outputs].copy()
    low, high = (np.array(bound, np.float32) for bound in (model.spec.action_low, model.spec.action_high))
    norm = policy.norm("vector_norm").copy()
    layers = Layers(
        tuple(weights), tuple(biases), model.net.activation, low, high, log_std, norm, CLIP, (LOG_STD_MIN, LOG_STD_MAX)
    )
    return FrozenPolicy(layers, about)


def _layer_names(model: PPOModel) -> list[str]:
    hidden = range(len(model.net.hidden))
    if model.net.is_shared:
        return [*(f"vector.linear{i}" for i in hidden), "head"]
    return [f"actor.linear{i}" for i in (*hidden, len(hidden))]


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.cpu().numpy(), np.float32, order="C")
