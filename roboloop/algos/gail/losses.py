"""The discriminator's losses, rewards and tests as pure functions; logits are of 'an expert did this'."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from roboloop.algos.gail.discriminator_config import RewardForm
from roboloop.core.types import Array

_EPS = 1e-12
"""Keeps the slope of a norm finite where it is zero."""
_LEAST_ENDS = 0.5
"""What stands for 'none so far' where a life is measured."""


class EpisodeCounts(NamedTuple):
    """How many steps there are of each task, and with how many of them the world ended."""

    steps: Array
    ends: Array


def logistic_loss(policy_logits: Tensor, expert_logits: Tensor, policy_weight: Tensor, expert_weight: Tensor) -> Tensor:
    """Return ½ E_policy[-log(1 - D)] + ½ E_expert[-log D] of logits ``[K, n]``, averaged over tasks.

    Weights are those of rows, ``[K, n]`` or what expands to it; each task's sum to one.
    """
    of_policy = (softplus(policy_logits) * policy_weight).sum(1)
    of_expert = (softplus(-expert_logits) * expert_weight).sum(1)
    return 0.5 * (of_policy + of_expert).mean()


def interpolated(policy: Tensor, expert: Tensor, lot: Tensor) -> Tensor:
    """Return places between policy ``[n, D]`` and expert rows ``[K, n, D]``; each dimension has its own lot."""
    return torch.lerp(expert, policy.expand_as(expert), lot)


def slope_penalty(slopes: Tensor) -> Tensor:
    """Return the mean squared distance of the lengths of slopes ``[K, n, D]`` from 1 (arXiv:1704.00028)."""
    return (slopes.square().sum(2).add(_EPS).sqrt() - 1.0).square().mean()


def reward_of(logits: Tensor, form: RewardForm) -> Tensor:
    """Return what a step is paid, from a stable form of each logarithm."""
    if form == "logit":
        return logits
    return logsigmoid(logits) if form == "log_d" else softplus(logits)


def after_the_end(reward: Tensor, gamma: float) -> Tensor:
    """Return the discounted sum of a reward that is paid for ever, from the step after the last one on."""
    return reward * (gamma / (1.0 - gamma))


def alive_offset(expert: EpisodeCounts, policy: EpisodeCounts) -> Array:
    """Return ln(life of the expert / life of the policy) of each task.

    Logits compare which share of a life is spent where; it takes the lengths of lives to compare how much. A mean life
    is all steps over all ends, also where the clock cut some of them short.
    """
    if not expert.ends.any() and not policy.ends.any():
        return np.zeros(len(expert.ends))
    expert_life, policy_life = (lives.steps / np.maximum(lives.ends, _LEAST_ENDS) for lives in (expert, policy))
    offset: Array = np.log(expert_life / policy_life)
    return offset


def accuracy(policy_logits: Tensor, expert_logits: Tensor) -> float:
    """Return the share of rows that are told apart, policy and expert counted alike."""
    right = (policy_logits < 0).float().mean() + (expert_logits > 0).float().mean()
    return 0.5 * float(right)


def calibration_error(policy_logits: Tensor, expert_logits: Tensor, bins: int = 10) -> float:
    """Return by how much 'expert with probability p' is wrong on average, over equal bins of p; 0 is honest.

    Policy and expert are counted alike, however many rows there are of each.
    """
    logits = torch.cat((policy_logits.flatten(), expert_logits.flatten()))
    probability = torch.sigmoid(logits).double().numpy()
    is_expert = np.arange(len(logits)) >= policy_logits.numel()
    weight = np.where(is_expert, 0.5 / expert_logits.numel(), 0.5 / policy_logits.numel())
    index = np.minimum((probability * bins).astype(int), bins - 1)
    gap = np.bincount(index, weight * (probability - is_expert), bins)
    return float(np.abs(gap).sum())


def clipped(grad: Tensor, limit: float) -> Tensor:
    """Return a gradient that is no longer than the limit; 0 is no limit."""
    norm = float(torch.linalg.vector_norm(grad))
    return grad if not limit or norm <= limit or not math.isfinite(norm) else grad * (limit / norm)
