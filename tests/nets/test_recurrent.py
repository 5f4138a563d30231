"""Recurrent cores against torch's own, step by step and through whole windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from roboloop.nets.flat import Layout, Views
from roboloop.nets.layers import as_in_out
from roboloop.nets.recurrent import CORES, core_shapes, initialise_core

STEPS, COLUMNS, INPUTS, SIZE = 7, 4, 5, 6


def make(kind: str) -> tuple[Views, Views]:
    layout = Layout(core_shapes(INPUTS, SIZE, CORES[kind].GATES))
    weights, grads = layout.views(layout.zeros()), layout.views(torch.full((layout.size,), math.nan))
    initialise_core(weights, SIZE, np.random.default_rng(0))
    for part in ("input", "memory"):
        weights[f"{part}.bias"].normal_()
    return weights, grads


def by_autograd(kind: str, weights: Views, x: Tensor, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and last memory from torch's own cell, clearing the memory where an episode starts."""
    cell = {"gru": torch.gru_cell, "lstm": torch.lstm_cell}[kind]
    w_in = as_in_out(weights["input.weight"], weights["input.bias"]).t()
    parameters = (w_in, weights["memory.weight"].t(), weights["input.bias"], weights["memory.bias"])
    outputs = []
    for t in range(len(starts)):
        memory = memory * (1 - starts[t]).unsqueeze(1)
        state = memory if kind == "gru" else memory.split(SIZE, dim=1)
        after = cell(x.view(len(starts), -1, INPUTS)[t], state, *parameters)
        memory = after if kind == "gru" else torch.cat(after, dim=1)
        outputs.append(memory[:, :SIZE])
    return torch.cat(outputs), memory


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("learned_steps", [STEPS, STEPS - 1])
def test_windows_with_starts_inside_equal_torch_in_outputs_and_gradients(kind: str, learned_steps: int) -> None:
    weights, grads = make(kind)
    starts = torch.zeros(STEPS, COLUMNS)
    starts[0, 1] = starts[3, 0] = starts[3, 2] = starts[6, 3] = 1.0
    x, memory = torch.randn(STEPS * COLUMNS, INPUTS), torch.randn(COLUMNS, SIZE * (2 if kind == "lstm" else 1))
    rows = learned_steps * COLUMNS
    dy = torch.randn(rows, SIZE)
    leaves, x_leaf = {n: v.clone().requires_grad_() for n, v in weights.items()}, x.clone().requires_grad_()
    wanted, last = by_autograd(kind, leaves, x_leaf, memory, starts)
    torch.autograd.backward(wanted[:rows], dy)
    core = CORES[kind](weights, grads, STEPS, COLUMNS)
    torch.testing.assert_close(core.forward(x, memory, starts), wanted.detach())
    torch.testing.assert_close(core.memory, last.detach())
    dx = core.backward(dy.clone())
    assert x_leaf.grad is not None
    torch.testing.assert_close(dx, x_leaf.grad[:rows])
    for name, leaf in leaves.items():
        torch.testing.assert_close(grads[name], leaf.grad, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_window_equals_its_steps_one_by_one(kind: str) -> None:
    weights, _ = make(kind)
    x, memory = torch.randn(STEPS * COLUMNS, INPUTS), torch.zeros(COLUMNS, SIZE * (2 if kind == "lstm" else 1))
    starts = torch.zeros(STEPS, COLUMNS)
    starts[4, 2] = 1.0
    whole = CORES[kind](weights, None, STEPS, COLUMNS).forward(x, memory, starts)
    single = CORES[kind](weights, None, 1, COLUMNS)
    for t, (x_t, y_t) in enumerate(zip(x.view(STEPS, COLUMNS, -1), whole.view(STEPS, COLUMNS, -1), strict=True)):
        memory = memory * (1 - starts[t]).unsqueeze(1)
        torch.testing.assert_close(single.forward(x_t, memory, torch.zeros(1, COLUMNS)), y_t, atol=1e-5, rtol=1e-5)
        memory = single.memory.clone()


def test_an_lstm_begins_by_not_forgetting() -> None:
    layout = Layout(core_shapes(INPUTS, SIZE, 4))
    weights = layout.views(layout.zeros())
    initialise_core(weights, SIZE, np.random.default_rng(0))
    assert (weights["memory.bias"] + weights["input.bias"])[SIZE : 2 * SIZE].eq(1.0).all()
    gate = weights["memory.weight"][:, :SIZE]
    torch.testing.assert_close(gate @ gate.t(), torch.eye(SIZE), atol=1e-5, rtol=0)
