"""Actors that pick by themselves: a pick that is tanh-Gaussian or one of K, and a place beside it or after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roboloop.nets.modules import tanh_gaussian

MakeNet = Callable[[int, int], nn.Module]
"""Returns a network from an observation and so many more numbers to so many outputs."""
Drawn = tuple[Tensor, Tensor]
"""Actions in [-1, 1] and the logarithm of their probability, one row per state."""


@dataclass(frozen=True)
class ActorKind:
    """How an actor's columns come about."""

    pick_dim: int
    """First columns, which say what is picked; the others are tanh-Gaussian."""
    is_choice: bool = False
    """Whether these are a choice among so many, a one-hot row of -1 and 1; else they are tanh-Gaussian too."""
    in_turn: bool = False
    """Whether a second network, which sees the pick, says the other columns."""
    temperature: float = 1.0
    """Softness of the row that a choice's gradient goes through."""

    @property
    def pick_outputs(self) -> int:
        """Numbers by which a network says what is picked."""
        return self.pick_dim if self.is_choice else 2 * self.pick_dim


class PickActor(nn.Module):
    """One network for all columns, or pi(p | o) pi(d | o, p): what was picked is seen by the network that places it."""

    def __init__(self, kind: ActorKind, action_dim: int, make_net: MakeNet) -> None:
        super().__init__()
        self.kind, place = kind, 2 * (action_dim - kind.pick_dim)
        self.pick = make_net(0, kind.pick_outputs + (0 if kind.in_turn else place))
        self.place = make_net(kind.pick_dim, place) if kind.in_turn else None

    def forward(self, seen: Tensor, noise: Tensor | None) -> Drawn:
        """Return actions for standard normal noise ``[N, A]``; without any, the likeliest pick and its place."""
        kind, outputs = self.kind, self.pick(seen)
        pick_noise, place_noise = (None, None) if noise is None else noise.tensor_split([kind.pick_dim], 1)
        logits = outputs[:, : kind.pick_outputs]
        if kind.is_choice:
            pick, log_pick = choice(logits, pick_noise, kind.temperature)
        else:
            pick, log_pick = tanh_gaussian(logits, pick_noise)
        outputs = outputs[:, kind.pick_outputs :] if self.place is None else self.place(torch.cat((seen, pick), 1))
        place, log_place = tanh_gaussian(outputs, place_noise)
        return torch.cat((pick, place), 1), log_pick + log_place


def choice(logits: Tensor, noise: Tensor | None, temperature: float) -> Drawn:
    """Return one of K, straight through (arXiv:1611.01144), as a row of -1 and 1.

    The one-hot row goes on, its gradient goes by the softened one. The logarithm of its probability is
    sum_k y_k log p_k, where y is that same row: so the gradient of entropy goes through the choice too, without which
    it would be zero on average.
    """
    # noise is normal everywhere else too: -log(-log u) is Gumbel where u = Phi(z) is uniform
    noisy = logits if noise is None else logits - (-torch.special.log_ndtr(noise)).log()
    soft = (noisy / temperature).softmax(1)
    hard = noisy.argmax(1, keepdim=True) == torch.arange(logits.shape[1], device=logits.device)
    row = hard.to(soft.dtype) - soft.detach() + soft
    return 2.0 * row - 1.0, (row * logits.log_softmax(1)).sum(1)
