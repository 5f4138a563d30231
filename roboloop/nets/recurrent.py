"""Recurrent cores over windows ``[T, B]``: one product for all inputs, T small ones for the memory, backward by hand.

Rows are time-major: row ``t * B + b``. Where an episode starts inside the window, the memory is zero before that step.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.flat import Views, under
from roboloop.nets.layers import Linear, Scratch, as_in_out, weight_shape
from roboloop.nets.mlp import Shapes
from roboloop.nets.orthogonal import fill_orthogonal


class Core(Protocol):
    """A memory that sees one window after another."""

    memory: Tensor
    """``[B, M]`` after the last step of the last forward pass."""

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Return outputs ``[T * B, size]`` for inputs ``[T * B, inputs]``, memory ``[B, M]`` and starts ``[T, B]``."""
        ...

    def backward(self, dy: Tensor) -> Tensor:
        """Write all weight gradients; return those of the inputs. ``dy`` may cover only the first steps."""
        ...


def core_shapes(inputs: int, size: int, gates: int) -> Shapes:
    """Return the parameter names and shapes of a core with so many gates."""
    return {
        "input.weight": weight_shape(inputs, gates * size), "input.bias": (gates * size,),
        "memory.weight": (size, gates * size), "memory.bias": (gates * size,),
    }  # fmt: skip


def initialise_core(weights: Views, size: int, rng: np.random.Generator) -> None:
    """Fill with orthogonal weights, gate by gate, and zero biases; an LSTM begins by not forgetting."""
    for part in ("input", "memory"):
        bias = weights[f"{part}.bias"].zero_()
        for gate in torch.split(as_in_out(weights[f"{part}.weight"], bias), size, dim=1):
            fill_orthogonal(gate, 1.0, rng)
    if weights["memory.bias"].numel() == LSTM.GATES * size:
        weights["memory.bias"][size : 2 * size] = 1.0


class _Window:
    """What both cores share: the two linear maps, and where episodes start."""

    def __init__(self, weights: Views, grads: Views | None, steps: int, columns: int, gates: int) -> None:
        self._steps, self._columns = steps, columns
        self._size = weights["memory.bias"].numel() // gates
        device = weights["memory.bias"].device
        self._scratch = Scratch(device)
        y = torch.empty(steps * columns, gates * self._size, device=device)
        input_grads = under("input", grads) if grads else None
        self._input = Linear(under("input", weights), input_grads, y, self._scratch, "dx")
        self._w, self._b = weights["memory.weight"], weights["memory.bias"]
        self._grads = (grads["memory.weight"], grads["memory.bias"]) if grads else None

    def buffer(self, name: str, width: int) -> Tensor:
        """Return memory ``[T, B, width]``."""
        return self._scratch.take(name, self._steps * self._columns, width).view(self._steps, self._columns, width)

    def see_starts(self, starts: Tensor) -> None:
        """Remember at which steps a memory is cleared, so that the others need no multiplication."""
        self._keeps = [1.0 - row.unsqueeze(1) if any_start else None
                       for row, any_start in zip(starts, starts.any(1).tolist(), strict=True)]  # fmt: skip

    def kept(self, memory: Tensor, t: int) -> Tensor:
        """Return the memory, zero where an episode starts at this step."""
        keep = self._keeps[t]
        return memory if keep is None else memory * keep

    def write_memory_gradient(self, h_before: Tensor, d_gates: Tensor) -> None:
        """Write the gradient of the memory's weights from all steps at once."""
        assert self._grads is not None
        torch.mm(h_before.flatten(0, 1).t(), d_gates.flatten(0, 1), out=self._grads[0])
        torch.sum(d_gates.flatten(0, 1), 0, out=self._grads[1])


class GRU(_Window):
    """Gated recurrent unit (arXiv:1406.1078), gates in the order reset, update, new; the form that cuDNN uses."""

    GATES = 3

    def __init__(self, weights: Views, grads: Views | None, steps: int, columns: int) -> None:
        super().__init__(weights, grads, steps, columns, self.GATES)
        self._gates, self._from_memory = self.buffer("gates", 2 * self._size), self.buffer("memory", 3 * self._size)
        self._new, self._h_before = self.buffer("new", self._size), self.buffer("before", self._size)
        self._h = self.buffer("after", self._size)

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """r, z = sigmoid(.); n = tanh(x W + r (h U)); h' = n + z (h - n)."""
        size = self._size
        from_input = self._input.forward(x).view(self._steps, self._columns, -1)
        self.see_starts(starts)
        h = memory
        for t in range(self._steps):
            before = self._h_before[t].copy_(self.kept(h, t))
            u = torch.addmm(self._b, before, self._w, out=self._from_memory[t])
            gates = torch.add(from_input[t, :, : 2 * size], u[:, : 2 * size], out=self._gates[t]).sigmoid_()
            reset, update = gates[:, :size], gates[:, size:]
            new = torch.addcmul(from_input[t, :, 2 * size :], reset, u[:, 2 * size :], out=self._new[t]).tanh_()
            h = torch.lerp(new, before, update, out=self._h[t])
        self.memory = h
        return self._h.flatten(0, 1)

    def backward(self, dy: Tensor) -> Tensor:
        """Go back through time; all that does not depend on later steps is computed for all of them at once."""
        size, columns = self._size, self._columns
        steps = len(dy) // columns
        dy = dy.view(steps, columns, size)
        reset, update = self._gates[:steps, :, :size], self._gates[:steps, :, size:]
        new, before = self._new[:steps], self._h_before[:steps]
        # slopes by dh': of the new value's argument, of the update gate's; and of the reset gate's by the former
        new_slope = (1.0 - update).mul_(1.0 - new.square())
        update_slope = (before - new).mul_(update).mul_(1.0 - update)
        reset_slope = self._from_memory[:steps, :, 2 * size :] * reset * (1.0 - reset)
        d_memory, d_input = self.buffer("d_memory", 3 * size)[:steps], self.buffer("d_input", 3 * size)[:steps]
        w_t = self._w.t()
        d_h = torch.zeros(columns, size, device=dy.device)
        for t in reversed(range(steps)):
            d_h += dy[t]
            d_new = torch.mul(d_h, new_slope[t], out=d_input[t, :, 2 * size :])
            torch.mul(d_new, reset_slope[t], out=d_memory[t, :, :size])
            torch.mul(d_h, update_slope[t], out=d_memory[t, :, size : 2 * size])
            torch.mul(d_new, reset[t], out=d_memory[t, :, 2 * size :])
            d_h = self.kept(torch.addmm(d_h.mul_(update[t]), d_memory[t], w_t), t)
        d_input[:, :, : 2 * size] = d_memory[:, :, : 2 * size]
        self.write_memory_gradient(before, d_memory)
        dx = self._input.backward(d_input.flatten(0, 1), need_dx=True)
        assert dx is not None
        return dx


class LSTM(_Window):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), gates in the order in, forget, cell, out."""

    GATES = 4

    def __init__(self, weights: Views, grads: Views | None, steps: int, columns: int) -> None:
        super().__init__(weights, grads, steps, columns, self.GATES)
        self._gates, self._squashed = self.buffer("gates", 4 * self._size), self.buffer("squashed", self._size)
        self._before = self.buffer("before", 2 * self._size)
        self._h, self._c = self.buffer("h", self._size), self.buffer("c", self._size)

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """i, f, o = sigmoid(.); g = tanh(.); c' = f c + i g; h' = o tanh(c'). The memory is h, then c."""
        size = self._size
        from_input = self._input.forward(x).view(self._steps, self._columns, -1)
        self.see_starts(starts)
        for t in range(self._steps):
            before = self._before[t].copy_(self.kept(memory, t))
            gates = torch.addmm(self._b, before[:, :size], self._w, out=self._gates[t]).add_(from_input[t])
            gates[:, : 2 * size].sigmoid_()
            gates[:, 3 * size :].sigmoid_()
            gates[:, 2 * size : 3 * size].tanh_()
            enter, forget, cell, out = torch.split(gates, size, dim=1)
            c = torch.mul(forget, before[:, size:], out=self._c[t]).addcmul_(enter, cell)
            h = torch.mul(out, torch.tanh(c, out=self._squashed[t]), out=self._h[t])
            memory = torch.cat((h, c), dim=1)
        self.memory = memory
        return self._h.flatten(0, 1)

    def backward(self, dy: Tensor) -> Tensor:
        """Go back through time; all that does not depend on later steps is computed for all of them at once."""
        size, columns = self._size, self._columns
        steps = len(dy) // columns
        dy = dy.view(steps, columns, size)
        enter, forget, cell, out = torch.split(self._gates[:steps], size, dim=2)
        squashed, c_before = self._squashed[:steps], self._before[:steps, :, size:]
        # slopes of the gates' arguments by dc', the output gate's by dh', and of c' by dh'
        slopes = torch.cat((
            cell * enter * (1.0 - enter), c_before * forget * (1.0 - forget), enter * (1.0 - cell.square()),
        ), dim=2)  # fmt: skip
        out_slope, c_slope = squashed * out * (1.0 - out), out * (1.0 - squashed.square())
        d_gates = self.buffer("d_gates", 4 * size)[:steps]
        w_t = self._w.t()
        d_h, d_c = torch.zeros(2, columns, size, device=dy.device)
        for t in reversed(range(steps)):
            d_h = d_h + dy[t]
            d_c = torch.addcmul(d_c, d_h, c_slope[t])
            torch.mul(d_c.repeat(1, 3), slopes[t], out=d_gates[t, :, : 3 * size])
            torch.mul(d_h, out_slope[t], out=d_gates[t, :, 3 * size :])
            d_h, d_c = self.kept(torch.mm(d_gates[t], w_t), t), self.kept(d_c * forget[t], t)
        self.write_memory_gradient(self._before[:steps, :, :size], d_gates)
        dx = self._input.backward(d_gates.flatten(0, 1), need_dx=True)
        assert dx is not None
        return dx


CORES: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}
