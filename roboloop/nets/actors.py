"""Actors of soft actor-critic: networks with heads that draw actions, and the way back from an action's gradient.

One network may say all columns (``JointActor``), or one says what to pick and another, which sees that, where to place
it (``AutoregressiveActor``). Columns are tanh-Gaussian, or one choice among K as a one-hot row of -1 and 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.heads import Sample, sample, sample_gradient
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import Net, NetSpec, Shapes


class Drawn(NamedTuple):
    """Actions in [-1, 1] with the logarithm of their probability; one row per state."""

    action: Tensor
    log_prob: Tensor


class Head(Protocol):
    """Draws actions from a network's outputs; ``draw`` keeps what ``pulled_back`` needs."""

    columns: int
    """Of an action, and of the standard normal noise that it is made of."""
    outputs: int
    """Of the network."""

    def draw(self, outputs: Tensor, noise: Tensor) -> Drawn:
        """Return actions for outputs ``[N, outputs]`` and noise ``[N, columns]``."""
        ...

    def vjp(self, d_action: Tensor, d_log_prob: float | Tensor) -> Tensor:
        """Return the gradient of the outputs, of the first rows that were drawn or of all."""
        ...

    def likeliest(self, outputs: Tensor) -> Tensor:
        """Return actions without noise."""
        ...


class TanhGaussian:
    """tanh-Gaussian columns (``nets/heads.py``)."""

    def __init__(self, columns: int) -> None:
        self.columns, self.outputs = columns, 2 * columns
        self._drawn: Sample | None = None

    def draw(self, outputs: Tensor, noise: Tensor) -> Drawn:
        """Return tanh(mean + std noise)."""
        self._drawn = sample(outputs, noise)
        return Drawn(self._drawn.action, self._drawn.log_prob)

    def vjp(self, d_action: Tensor, d_log_prob: float | Tensor) -> Tensor:
        """Return the gradient through the reparametrised sample."""
        assert self._drawn is not None, "draw first"
        return sample_gradient(self._drawn.first(len(d_action)), d_action, d_log_prob)

    def likeliest(self, outputs: Tensor) -> Tensor:
        """Return tanh(mean)."""
        return outputs[:, : self.columns].tanh()


class Choice:
    """One of K, straight through (arXiv:1611.01144): the one-hot row goes on, its gradient goes by the softened one.

    The logarithm of its probability is sum_k y_k log p_k, where y is that same row: so the gradient of entropy goes
    through the choice too, without which it would be zero on average.
    """

    def __init__(self, columns: int, temperature: float) -> None:
        self.columns = self.outputs = columns
        self._temperature = temperature
        self._soft = self._hard = self._log_chance = torch.empty(0)

    def draw(self, outputs: Tensor, noise: Tensor) -> Drawn:
        """Return the one-hot row of the greatest logit with Gumbel noise, as -1 and 1."""
        # noise is normal everywhere else too: -log(-log u) is Gumbel where u = Phi(z) is uniform
        gumbel = torch.special.log_ndtr(noise).neg_().log_().neg_()
        noisy = outputs + gumbel
        self._log_chance = outputs.log_softmax(1)
        self._soft = noisy.div(self._temperature).softmax(1)
        self._hard = one_hot(noisy.argmax(1), self.columns).to(outputs.dtype)
        return Drawn(2.0 * self._hard - 1.0, (self._hard * self._log_chance).sum(1))

    def vjp(self, d_action: Tensor, d_log_prob: float | Tensor) -> Tensor:
        """Return the gradient of the logits: through the softened row, and through log p."""
        rows = len(d_action)
        soft, hard, log_chance = self._soft[:rows], self._hard[:rows], self._log_chance[:rows]
        each = d_log_prob.unsqueeze(1) if isinstance(d_log_prob, Tensor) else d_log_prob
        d_row = 2.0 * d_action + each * log_chance
        through_row = soft * (d_row - (soft * d_row).sum(1, keepdim=True)) / self._temperature
        return through_row + each * (hard - log_chance.exp())

    def likeliest(self, outputs: Tensor) -> Tensor:
        """Return the one-hot row of the greatest logit."""
        return 2.0 * one_hot(outputs.argmax(1), self.columns).to(outputs.dtype) - 1.0


class ConcatHead:
    """Two heads over one network: the first ones of the outputs and columns are the first head's."""

    def __init__(self, first: Head, second: Head) -> None:
        self._first, self._second = first, second
        self.columns, self.outputs = first.columns + second.columns, first.outputs + second.outputs

    def draw(self, outputs: Tensor, noise: Tensor) -> Drawn:
        """Return both heads' columns; probabilities multiply."""
        a = self._first.draw(outputs[:, : self._first.outputs], noise[:, : self._first.columns])
        b = self._second.draw(outputs[:, self._first.outputs :], noise[:, self._first.columns :])
        return joined(a, b)

    def vjp(self, d_action: Tensor, d_log_prob: float | Tensor) -> Tensor:
        """Return both heads' gradients."""
        a = self._first.vjp(d_action[:, : self._first.columns], d_log_prob)
        return torch.cat((a, self._second.vjp(d_action[:, self._first.columns :], d_log_prob)), 1)

    def likeliest(self, outputs: Tensor) -> Tensor:
        """Return both heads' columns without noise."""
        a = self._first.likeliest(outputs[:, : self._first.outputs])
        return torch.cat((a, self._second.likeliest(outputs[:, self._first.outputs :])), 1)


def joined(a: Drawn, b: Drawn) -> Drawn:
    """Return columns side by side, and the probability of both."""
    return Drawn(torch.cat((a.action, b.action), 1), a.log_prob + b.log_prob)


class Actor(Protocol):
    """Draws actions in states; ``draw`` keeps what ``backward`` needs."""

    def draw(self, obs: Tensor, noise: Tensor) -> Drawn:
        """Return actions for states ``[N, ...]`` and standard normal noise ``[N, A]``."""
        ...

    def backward(self, d_action: Tensor, d_log_prob: float | Tensor) -> None:
        """Write the gradient of every weight; ``d_action`` may cover only the first rows that were drawn."""
        ...

    def likeliest(self, obs: Tensor) -> Tensor:
        """Return actions without noise."""
        ...


class JointActor:
    """One network says all columns."""

    def __init__(self, net: Net, head: Head) -> None:
        self.net, self._head, self.columns = net, head, head.columns

    def draw(self, obs: Tensor, noise: Tensor) -> Drawn:
        """Return the head's draws."""
        return self._head.draw(self.net.forward(obs), noise)

    def backward(self, d_action: Tensor, d_log_prob: float | Tensor) -> None:
        """Go back through head and network."""
        self.net.backward(self._head.vjp(d_action, d_log_prob))

    def backward_to(self, d_action: Tensor, d_log_prob: float | Tensor, column: int) -> Tensor:
        """Do the same, and return the gradient of the inputs from a column on."""
        d_outputs = self._head.vjp(d_action, d_log_prob)
        d_inputs = self.net.backward_inputs_from(d_outputs, column)
        self.net.backward(d_outputs)
        return d_inputs

    def likeliest(self, obs: Tensor) -> Tensor:
        """Return the head's best."""
        return self._head.likeliest(self.net.forward(obs))


class AutoregressiveActor:
    """pi(p | o) pi(d | o, p): what was picked is seen by the network that places it."""

    def __init__(self, pick: JointActor, place: JointActor) -> None:
        self._pick, self._place = pick, place
        self._num_seen, self._num_picked = 0, pick.columns

    def draw(self, obs: Tensor, noise: Tensor) -> Drawn:
        """Return picks, then displacements of what was picked."""
        self._num_seen = obs.shape[1]
        picked = self._pick.draw(obs, noise[:, : self._num_picked])
        placed = self._place.draw(torch.cat((obs, picked.action), 1), noise[:, self._num_picked :])
        return joined(picked, placed)

    def backward(self, d_action: Tensor, d_log_prob: float | Tensor) -> None:
        """Go back to the pick both directly and through the displacement that follows it."""
        by_place = self._place.backward_to(d_action[:, self._num_picked :], d_log_prob, self._num_seen)
        self._pick.backward(d_action[:, : self._num_picked] + by_place, d_log_prob)

    def likeliest(self, obs: Tensor) -> Tensor:
        """Return the likeliest pick, and its likeliest displacement."""
        pick = self._pick.likeliest(obs)
        return torch.cat((pick, self._place.likeliest(torch.cat((obs, pick), 1))), 1)


@dataclass(frozen=True)
class ActorKind:
    """How an actor's columns come about; the plain one is tanh-Gaussian in all of them."""

    pick_dim: int = 0
    """First columns that say what is picked; 0 = nothing is told apart."""
    is_choice: bool = False
    """Whether these are a choice among so many."""
    in_turn: bool = False
    """Whether a second network, which sees the pick, says the other columns."""
    temperature: float = 1.0
    """Softness of the row that a choice's gradient goes through."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the tanh-Gaussian."""
        return not self.is_choice and not self.in_turn

    def head(self, action_dim: int) -> Head:
        """Return the head of the network, or of the first one."""
        if self.is_plain:
            return TanhGaussian(action_dim)
        pick = Choice(self.pick_dim, self.temperature) if self.is_choice else TanhGaussian(self.pick_dim)
        return pick if self.in_turn else ConcatHead(pick, self.place_head(action_dim))

    def place_head(self, action_dim: int) -> Head:
        """Return the head of what is not picked."""
        return TanhGaussian(action_dim - self.pick_dim)

    def to_data(self) -> dict[str, Any]:
        """Return the kind as plain data."""
        return asdict(self)


PLAIN = ActorKind()


@dataclass(frozen=True)
class ActorSpec:
    """What fixes an actor but for its weights."""

    kind: ActorKind
    action_dim: int
    net: NetSpec
    """The network, or the one that picks."""
    place: NetSpec | None = None
    """The one that places what was picked, if there are two."""

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        if self.place is None:
            return self.net.shapes()
        return prefixed("pick", self.net.shapes()) | prefixed("place", self.place.shapes())

    def build(
        self, weights: Views, grads: Views | None, rows: int, scratch: Scratch, name: str = "actor", blocks: int = 1
    ) -> JointActor | AutoregressiveActor:
        """Return the actor over weights; ``rows`` are so many ``blocks`` of all groups."""
        head = self.kind.head(self.action_dim)
        if self.place is None:
            return JointActor(self.net.build(weights, grads, rows, scratch, name, blocks), head)
        parts = []
        for part, net in (("pick", self.net), ("place", self.place)):
            own = under(part, weights), under(part, grads) if grads else None
            parts.append(net.build(*own, rows, scratch, f"{name}.{part}", blocks))
        return AutoregressiveActor(
            JointActor(parts[0], head), JointActor(parts[1], self.kind.place_head(self.action_dim))
        )
