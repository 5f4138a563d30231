"""Recurrent cores over windows ``[T, B]``: one product for all inputs, then a small one for the memory at each step.

Where an episode starts inside the window, the memory is zero before that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return outputs and the memory after them; while learning by one node for the whole window."""
        if starts is None or len(x) == 1 or not torch.is_grad_enabled():
            return super().forward(x, memory, starts)
        keep = (1.0 - starts).unsqueeze(2)
        outputs = _gru_window(self.input(x), memory, keep, self.memory.weight, self.memory.bias)
        return outputs, outputs[-1]


class _GRUWindow(torch.autograd.Function):
    """``GRU.step`` over a window, 1.3 times as fast as autograd: one product for the gradient of all steps' weights.

    The memory before the window gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, from_input: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the memory after each step."""
        steps, columns, width = from_input.shape
        size = width // 3
        gates, of_memory, new, before, after = (from_input.new_empty(steps, columns, n * size) for n in (2, 3, 1, 1, 1))
        for t in range(steps):
            torch.mul(memory, keep[t], out=before[t])
            torch.addmm(bias, before[t], weight.t(), out=of_memory[t])
            torch.add(from_input[t, :, : 2 * size], of_memory[t, :, : 2 * size], out=gates[t]).sigmoid_()
            reset, update = gates[t].chunk(2, 1)
            torch.addcmul(from_input[t, :, 2 * size :], reset, of_memory[t, :, 2 * size :], out=new[t]).tanh_()
            memory = torch.lerp(new[t], before[t], update, out=after[t])
        ctx.save_for_backward(gates, of_memory, new, before, keep, weight)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through time; all that does not depend on later steps is computed for all of them at once."""
        gates, of_memory, new, before, keep, weight = ctx.saved_tensors
        steps, columns, size = new.shape
        reset, update = gates.chunk(2, 2)
        # slopes by dh': of the new value's argument, of the update gate's; and of the reset gate's by the former
        new_slope = (1.0 - update) * (1.0 - new.square())
        update_slope = (before - new) * update * (1.0 - update)
        reset_slope = of_memory[:, :, 2 * size :] * reset * (1.0 - reset)
        d_memory, d_input = dy.new_empty(steps, columns, 3 * size), dy.new_empty(steps, columns, 3 * size)
        d_h = torch.zeros_like(dy[0])
        for t in reversed(range(steps)):
            d_h = d_h + dy[t]
            d_new = torch.mul(d_h, new_slope[t], out=d_input[t, :, 2 * size :])
            torch.mul(d_new, reset_slope[t], out=d_memory[t, :, :size])
            torch.mul(d_h, update_slope[t], out=d_memory[t, :, size : 2 * size])
            torch.mul(d_new, reset[t], out=d_memory[t, :, 2 * size :])
            d_h = torch.addmm(d_h * update[t], d_memory[t], weight) * keep[t]
        d_input[:, :, : 2 * size] = d_memory[:, :, : 2 * size]
        d_weight = torch.mm(before.flatten(0, 1).t(), d_memory.flatten(0, 1)).t()
        return d_input, None, None, d_weight, d_memory.sum((0, 1))


_gru_window: Callable[..., Tensor] = _GRUWindow.apply


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
