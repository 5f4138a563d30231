"""Actions as targets of supervised learning: squared error of continuous ones, cross-entropy of choices.

A row of outputs is ``[logits of each choice | continuous actions before tanh]``. An encoded action has the same
columns, ``[one-hot choices | continuous actions in units]``; the environment's bounds are [-1, 1] in units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.actions import Choices


class Fit(NamedTuple):
    """How well outputs fit actions, and which way they should go."""

    d_outputs: Tensor
    metrics: dict[str, Tensor]  # weighted sums; ``loss`` is the one that ``d_outputs`` belongs to


class TargetHead:
    """Reads outputs as actions with columns of ``choices`` (0 = continuous)."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        chosen = [column for column, n in enumerate(choices) if n]
        self._continuous = [column for column, n in enumerate(choices) if not n]
        self._choices = Choices([choices[column] for column in chosen], chosen) if chosen else None
        self._num_logits = sum(choices)
        # from choices and continuous actions side by side to the environment's order of columns
        self._order = np.argsort([*chosen, *self._continuous]).tolist()
        self.width = self._num_logits + len(self._continuous)
        names = ["loss"] + ["cross_entropy", "accuracy"] * bool(chosen) + ["squared_error"] * bool(self._continuous)
        self.metrics = tuple(names)

    def encode(self, action: Tensor) -> Tensor:
        """Return actions ``[N, columns]`` in units as what a network reads, ``[N, width]``."""
        if self._choices is None:
            return action
        one_hot = torch.zeros(len(action), self._num_logits, device=action.device)
        one_hot.scatter_(1, self._choices.chosen(action[:, self._choices.columns]), 1.0)
        return torch.cat((one_hot, action[:, self._continuous]), dim=1) if self._continuous else one_hot

    def fit(self, outputs: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None) -> Fit:
        """Compare with actions ``[N, columns]``; ``weight [N]`` is zero where a row does not count, and sums to one."""
        logits, raw = torch.split(outputs, [self._num_logits, len(self._continuous)], dim=1)
        parts: list[Fit] = []
        if self._choices is not None:
            parts.append(choice_fit(self._choices, logits, action[:, self._choices.columns], weight, mask))
        if self._continuous:
            parts.append(squared_fit(raw, action[:, self._continuous], weight))
        metrics = {name: value for part in parts for name, value in part.metrics.items() if name != "loss"}
        loss = torch.stack([part.metrics["loss"] for part in parts]).sum()
        return Fit(torch.cat([part.d_outputs for part in parts], dim=1), {"loss": loss, **metrics})

    def choose(self, outputs: Tensor, mask: Tensor | None, rng: np.random.Generator | None) -> Tensor:
        """Return actions ``[N, columns]`` in units: the likeliest choices, or with ``rng`` drawn ones."""
        logits, raw = torch.split(outputs, [self._num_logits, len(self._continuous)], dim=1)
        parts: list[Tensor] = []
        if self._choices is not None and rng is None:
            parts.append(self._choices.mode(logits, mask))
        elif self._choices is not None and rng is not None:
            noise = torch.from_numpy(self._choices.noise(rng, len(outputs))).to(outputs.device)
            parts.append(self._choices.sample(logits, noise, mask))
        if self._continuous:
            parts.append(raw.tanh())
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)[:, self._order]


def choice_fit(choices: Choices, logits: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None) -> Fit:
    """Return the cross-entropy summed over columns: d/dlogit = p - [chosen]."""
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        loss = -(choices.log_prob(leaf, action, mask) * weight).sum()
    (d_logits,) = torch.autograd.grad(loss, leaf)
    loss = loss.detach()
    right = (choices.mode(logits, mask) == action).float().mean(1)
    return Fit(d_logits, {"loss": loss, "cross_entropy": loss, "accuracy": (right * weight).sum()})


def squared_fit(raw: Tensor, action: Tensor, weight: Tensor) -> Fit:
    """Return the squared error of tanh(raw), averaged over columns."""
    found = raw.tanh()
    error = found - action
    loss = (error.square().mean(1) * weight).sum()
    d_raw = error.mul_((1.0 - found.square()).mul_(weight.unsqueeze(1))).mul_(2.0 / error.shape[1])
    return Fit(d_raw, {"loss": loss, "squared_error": loss})
