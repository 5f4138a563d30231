"""Advantages and value targets over rollouts ``[T, B]``; where an episode ended decides what follows a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roboloop.core.types import Array, Rollout


class Ends(NamedTuple):
    """Where episodes ended, and what their last observations were worth."""

    is_end: Array  # [T, B] float32, 1 where the next row belongs to another episode
    value: Array  # [T, B] of the last observation: zero where the world ended, and where nothing ended


class Targets(NamedTuple):
    """What policy and value learn from."""

    advantage: Array  # [T, B]
    value: Array  # [T, B]


def ends_of(rollout: Rollout) -> Ends:
    """Return the ends: after termination there is nothing, after truncation what the acting policy expected."""
    is_end = (rollout.terminated | rollout.truncated).astype(np.float32)
    value = np.zeros_like(is_end)
    for end in rollout.episodes:
        column = end.env - rollout.first_env
        if not rollout.terminated[end.t, column]:
            value[end.t, column] = end.last_value
    return Ends(is_end, value)


def gae(reward: Array, value: Array, ends: Ends, gamma: float, lam: float) -> Targets:
    """Eq. 16 of arXiv:1506.02438, for values ``[T + 1, B]``: advantages are sums of (gamma lambda)^k delta_(t+k)."""
    delta = reward + gamma * _next_value(value, ends) - value[:-1]
    advantage = _discounted_sums(delta, gamma * lam * (1.0 - ends.is_end))
    return Targets(advantage, advantage + value[:-1])


def _next_value(value: Array, ends: Ends) -> Array:
    """Return what follows each step is worth; beyond the last row that is the value of the row that comes next."""
    return np.where(ends.is_end > 0, ends.value, value[1:])


def _discounted_sums(x: Array, decay: Array) -> Array:
    """Return y with y_t = x_t + decay_t y_(t+1), from the last row up."""
    sums = np.empty_like(x)
    carry: Array = np.zeros_like(x[0])
    for t in reversed(range(len(x))):
        carry = x[t] + decay[t] * carry
        sums[t] = carry
    return sums
