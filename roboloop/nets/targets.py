"""Actions as targets of supervised learning: squared error of continuous ones, cross-entropy of choices.

A row of outputs is ``[logits of each choice | continuous actions before tanh]``. An encoded action has the same
columns, ``[one-hot choices | continuous actions in units]``; the environment's bounds are [-1, 1] in units.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roboloop.core.types import Array
from roboloop.nets.actions import Choices

Loss = tuple[Tensor, dict[str, Tensor]]


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

    def encode(self, action: Tensor) -> Tensor:
        """Return actions ``[N, columns]`` in units as what a network reads, ``[N, width]``."""
        if self._choices is None:
            return action
        one_hot = action.new_zeros(action.shape[0], self._num_logits)  # len() would be a constant of a graph
        one_hot = one_hot.scatter(1, self._choices.chosen(columns_of(action, self._choices.columns)), 1.0)
        return torch.cat((one_hot, columns_of(action, self._continuous)), 1) if self._continuous else one_hot

    def loss(self, outputs: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None) -> Loss:
        """Return how far outputs are from actions ``[N, columns]``: summed, each row times its ``weight [N]``.

        Cross-entropy for choices and mean squared error for continuous actions, as in section 3 of arXiv:2106.01345.
        """
        logits, raw = torch.split(outputs, [self._num_logits, len(self._continuous)], dim=1)
        loss, said = outputs.new_zeros(()), {}
        if self._choices is not None:
            taken = columns_of(action, self._choices.columns)
            cross_entropy = -(self._choices.log_prob(logits, taken, mask) * weight).sum()
            right = (self._choices.mode(logits, mask) == taken).to(weight.dtype).mean(1)
            loss, said = loss + cross_entropy, {"cross_entropy": cross_entropy, "accuracy": (right * weight).sum()}
        if self._continuous:
            error = raw.tanh() - columns_of(action, self._continuous)
            squared_error = (error.square().mean(1) * weight).sum()
            loss, said = loss + squared_error, {**said, "squared_error": squared_error}
        return loss, said

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return what ``choose`` draws by: continuous actions are not drawn."""
        return self._choices.noise(rng, rows) if self._choices is not None else np.zeros((rows, 0), np.float32)

    def choose(self, outputs: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
        """Return actions ``[N, columns]`` in units: the likeliest choices, or with noise drawn ones."""
        logits, raw = torch.split(outputs, [self._num_logits, len(self._continuous)], dim=1)
        parts: list[Tensor] = []
        if self._choices is not None and noise is None:
            parts.append(self._choices.mode(logits, mask))
        elif self._choices is not None and noise is not None:
            parts.append(self._choices.sample(logits, noise, mask))
        if self._continuous:
            parts.append(raw.tanh())
        return parts[0] if len(parts) == 1 else columns_of(torch.cat(parts, 1), self._order)


def columns_of(rows: Tensor, columns: list[int]) -> Tensor:
    """Return some columns; a view where they are all."""
    if columns == [*range(rows.shape[1])]:
        return rows
    return torch.cat([rows[:, column : column + 1] for column in columns], 1)
