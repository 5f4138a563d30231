"""Recurrent cores against torch's own, step by step and through whole windows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roboloop.nets.recurrent import CORES, GRU, LSTM, Core

STEPS, COLUMNS, INPUTS, SIZE = 7, 4, 5, 6


def make(kind: str) -> Core:
    core = CORES[kind](INPUTS, SIZE)
    for layer in (core.input, core.memory):
        layer.bias.data.normal_()
    return core


def by_torch(kind: str, core: Core, x: Tensor, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and last memory from torch's own cell, clearing the memory where an episode starts."""
    cell = {"gru": torch.gru_cell, "lstm": torch.lstm_cell}[kind]
    parameters = (core.input.weight, core.memory.weight, core.input.bias, core.memory.bias)
    outputs = []
    for t in range(len(starts)):
        memory = memory * (1 - starts[t]).unsqueeze(1)
        state = memory if kind == "gru" else memory.split(SIZE, dim=1)
        after = cell(x[t], state, *parameters)
        memory = after if kind == "gru" else torch.cat(after, dim=1)
        outputs.append(memory[:, :SIZE])
    return torch.stack(outputs), memory


@pytest.mark.parametrize("kind", CORES)
def test_windows_with_starts_inside_equal_torch_in_outputs_and_gradients(kind: str) -> None:
    core = make(kind)
    starts = torch.zeros(STEPS, COLUMNS)
    starts[0, 1] = starts[3, 0] = starts[3, 2] = starts[6, 3] = 1.0
    x, memory = torch.randn(STEPS, COLUMNS, INPUTS, requires_grad=True), torch.randn(COLUMNS, core.memory_size)
    wanted, wanted_last = by_torch(kind, core, x, memory, starts)
    found, last = core(x, memory, starts)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(last, wanted_last)
    dy, leaves = torch.randn(STEPS, COLUMNS, SIZE), [x, *core.parameters()]
    for a, b in zip(
        torch.autograd.grad(found, leaves, dy), torch.autograd.grad(wanted, leaves, dy), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", CORES)
def test_a_window_equals_its_steps_one_by_one(kind: str) -> None:
    core = make(kind)
    x, memory = torch.randn(STEPS, COLUMNS, INPUTS), torch.zeros(COLUMNS, core.memory_size)
    starts = torch.zeros(STEPS, COLUMNS)
    starts[4, 2] = 1.0
    whole, _ = core(x, memory, starts)
    for t in range(STEPS):
        memory = memory * (1 - starts[t]).unsqueeze(1)
        with torch.no_grad():
            found, memory = core(x[t : t + 1], memory, torch.zeros(1, COLUMNS))
        torch.testing.assert_close(found[0], whole[t], atol=1e-5, rtol=1e-5)


def test_an_lstm_begins_by_not_forgetting_and_gates_begin_orthogonal() -> None:
    lstm, gru = LSTM(INPUTS, SIZE), GRU(INPUTS, SIZE)
    assert (lstm.memory.bias + lstm.input.bias)[SIZE : 2 * SIZE].eq(1.0).all()
    for core in (lstm, gru):
        for gate in core.memory.weight.split(SIZE):
            torch.testing.assert_close(gate @ gate.t(), torch.eye(SIZE), atol=1e-5, rtol=0)
