"""Recurrent cores over windows ``[T, B]``: one product for all inputs, then a small one for the memory at each step.

Where an episode starts inside the window, the memory is zero before that step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from roboloop.nets.orthogonal import orthogonal


class Core(nn.Module):
    """A memory ``[B, memory_size]`` that sees one window after another; a subclass says one step."""

    gates: int
    parts: int
    """Numbers of memory per unit."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.memory_size = size, self.parts * size
        self.input, self.memory = nn.Linear(inputs, self.gates * size), nn.Linear(size, self.gates * size)
        for layer in (self.input, self.memory):
            nn.init.zeros_(layer.bias)
            for gate in torch.split(layer.weight.data, size):
                orthogonal(gate, 1.0)

    def step(self, from_input: Tensor, memory: Tensor) -> Tensor:
        """Return the memory ``[B, memory_size]`` after a step; its first ``size`` numbers are the output."""
        raise NotImplementedError

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return outputs ``[T, B, size]`` and the memory after them; ``x`` is ``[T, B, inputs]``, ``starts [T, B]``.

        Without ``starts`` no episode begins.
        """
        outputs = []
        for t, from_input in enumerate(self.input(x)):
            memory = self.step(from_input, memory if starts is None else memory * (1.0 - starts[t]).unsqueeze(1))
            outputs.append(memory[:, : self.size])
        return torch.stack(outputs), memory


class GRU(Core):
    """Gated recurrent unit (arXiv:1406.1078), gates in the order reset, update, new; the form that cuDNN uses."""

    gates, parts = 3, 1

    def step(self, from_input: Tensor, memory: Tensor) -> Tensor:
        """r, z = sigmoid(.); n = tanh(x W + r (h U)); h' = n + z (h - n)."""
        of_memory = self.memory(memory)
        gates = (from_input[:, : 2 * self.size] + of_memory[:, : 2 * self.size]).sigmoid()
        reset, update = gates.chunk(2, 1)
        new = (from_input[:, 2 * self.size :] + reset * of_memory[:, 2 * self.size :]).tanh()
        return torch.lerp(new, memory, update)


class LSTM(Core):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), gates in the order in, forget, cell, out.

    The memory is h, then c; it begins by not forgetting.
    """

    gates, parts = 4, 2

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__(inputs, size)
        nn.init.ones_(self.memory.bias.data[size : 2 * size])

    def step(self, from_input: Tensor, memory: Tensor) -> Tensor:
        """i, f, o = sigmoid(.); g = tanh(.); c' = f c + i g; h' = o tanh(c')."""
        h, c = memory.chunk(2, 1)
        enter, forget, cell, out = (from_input + self.memory(h)).chunk(4, 1)
        c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
        return torch.cat((out.sigmoid() * c.tanh(), c), 1)


CORES: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}
