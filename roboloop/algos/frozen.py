"""From a policy that PPO learned to one that never changes and needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from roboloop.algos.learner.on_policy import OnPolicy
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, PortablePolicy
from roboloop.envs.frozen import FrozenPolicy, Layers
from roboloop.nets.actions import LOG_STD_MAX, LOG_STD_MIN
from roboloop.nets.actor_critic import activation_of
from roboloop.nets.normalize import CLIP


def freeze(policy: PortablePolicy, std: float | None = None, about: Mapping[str, Any] | None = None) -> FrozenPolicy:
    """Return what acts as a policy of PPO does; ``std`` is its deviation instead of what was learned."""
    learner = policy.learner if isinstance(policy, LearnerPolicy) else None
    if not isinstance(policy, LearnerPolicy) or not isinstance(learner, OnPolicy):
        kind = type(policy if learner is None else learner).__name__
        raise ConfigError(f"{kind} cannot be frozen: only policies of PPO can")
    if std is not None and not 0 < std < math.inf:
        raise ConfigError(f"the deviation of a frozen policy must be above 0, not {std}")
    cfg, spec, net = learner.cfg, learner.spec, learner.net
    if not spec.is_continuous or learner.fields.pictures or spec.obs_dtype.names or cfg.core != "none":
        raise ConfigError("only policies of plain observations, continuous actions and no memory can be frozen")
    if cfg.net != "mlp":
        raise ConfigError(f"only plain layers can be frozen (algo.net mlp), not {cfg.net!r}")
    layers = actor_layers(learner)
    weights, biases = [_array(layer.weight.t()) for layer in layers], [_array(layer.bias) for layer in layers]
    log_std = _array(net.log_std).clip(LOG_STD_MIN, LOG_STD_MAX) if net.has_free_std else np.zeros(0, np.float32)
    if std is not None:  # what the last layer says of deviations behind the means is left out
        log_std = np.full(spec.action_dim, math.log(std), np.float32)
        weights[-1], biases[-1] = weights[-1][:, : spec.action_dim].copy(), biases[-1][: spec.action_dim].copy()
    scale, norm = ActionScale(spec), policy.norm.numbers.reshape(2, -1).copy()
    frozen = Layers(
        tuple(weights), tuple(biases), activation_of(cfg, learner.fields), scale.low, scale.high, log_std, norm, CLIP,
        (LOG_STD_MIN, LOG_STD_MAX),
    )  # fmt: skip
    return FrozenPolicy(frozen, about)


def actor_layers(learner: OnPolicy) -> list[nn.Linear]:
    """Return the layers from observations to actions, where they are plain ones."""
    layers = [layer for layer in learner.net.actor.modules() if isinstance(layer, nn.Linear)]
    return [*layers, learner.net.policy]


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().cpu().numpy(), np.float32, order="C")
