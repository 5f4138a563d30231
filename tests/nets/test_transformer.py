"""The transformer by hand against autograd, finite differences, shorter windows and its own cache."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from roboloop.nets.dropout import LEVELS, Dropout
from roboloop.nets.flat import Layout, Views, under
from roboloop.nets.layers import NORM_EPS, as_in_out
from roboloop.nets.transformer import TransformerSpec
from roboloop.nets.windows import STATE, TOKENS, WindowInputs

SPEC = TransformerSpec(
    state_dim=5, num_features=2, action_dim=3, outputs=4, steps=6, times=9, width=12, layers=2, heads=1, dropout=0.0
)
SPECS = [SPEC, dataclasses.replace(SPEC, heads=3, layers=3), dataclasses.replace(SPEC, layers=1, state_dim=20)]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    """Everything here is computed in float64, so that differences are faults and not rounding."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def make(spec: TransformerSpec) -> tuple[Views, Views]:
    """Return random weights, larger than the first ones, and poisoned gradients."""
    layout = Layout(spec.shapes())
    weights, grads = layout.views(layout.zeros()), layout.views(torch.full((layout.size,), math.nan))
    spec.initialise(weights, np.random.default_rng(0))
    for view in weights.values():
        view.add_(torch.randn(view.shape), alpha=0.2)
    return weights, grads


def random_windows(spec: TransformerSpec, lengths: list[int]) -> WindowInputs:
    """Return windows of the given numbers of steps, padded on the left with what should not matter."""
    n, rows = len(lengths), len(lengths) * spec.steps
    valid = torch.tensor([[float(k >= spec.steps - length) for k in range(spec.steps)] for length in lengths])
    t = torch.randint(0, spec.times, (rows,), dtype=torch.int32)
    return WindowInputs(torch.randn(rows, spec.state_dim), torch.randn(rows, spec.action_dim), torch.randn(rows, 1), t,
                   valid.view(n, -1))  # fmt: skip


def dense(weights: Views, x: Tensor) -> Tensor:
    return x @ as_in_out(weights["weight"], weights["bias"]) + weights["bias"]


def norm(weights: Views, x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"], NORM_EPS)


def by_autograd(spec: TransformerSpec, weights: Views, windows: WindowInputs) -> Tensor:
    """Return what the network should compute, all tokens through all layers."""
    n, k = windows.valid.shape
    inputs = dict(zip(TOKENS, (windows.return_to_go, windows.state, windows.action), strict=True))
    time = weights["time"][windows.t.long()]
    x = torch.stack([dense(under(f"embed.{name}", weights), v) + time for name, v in inputs.items()], 1)
    x = norm(under("embed.norm", weights), x.view(n, 3 * k, spec.width))
    seen = windows.valid.bool().repeat_interleave(3, 1)[:, None, None] & torch.ones(3 * k, 3 * k).tril().bool()
    for i in range(spec.layers):
        part = under(f"block{i}", weights)
        h = norm(under("norm1", part), x)
        rows = [dense(under(name, part), h) for name in ("query", "key", "value")]
        heads = [a.view(n, 3 * k, spec.heads, -1).transpose(1, 2) for a in rows]
        scores = heads[0] @ heads[1].transpose(2, 3) / math.sqrt(spec.width // spec.heads)
        y = (scores.masked_fill(~seen, -1e9).softmax(3) @ heads[2]).transpose(1, 2).flatten(2)
        x = x + dense(under("mix", part), y)
        h = dense(under("expand", part), norm(under("norm2", part), x)).relu()
        x = x + dense(under("contract", part), h)
    x = norm(under("norm", weights), x).view(n * k, 3, -1)[:, STATE]
    return dense(under("head", weights), x)


@pytest.mark.parametrize("spec", SPECS)
def test_outputs_and_gradients_equal_autograd(spec: TransformerSpec) -> None:
    weights, grads = make(spec)
    windows = random_windows(spec, [6, 4, 1])
    counts = windows.valid.flatten() > 0
    leaves = {name: view.clone().requires_grad_() for name, view in weights.items()}
    state = windows.state.clone().requires_grad_()
    wanted = by_autograd(spec, leaves, windows._replace(state=state))
    dy = torch.randn(wanted.shape) * counts.unsqueeze(1)
    torch.autograd.backward(wanted, dy)
    net = spec.learner(weights, grads, 3)
    torch.testing.assert_close(net.forward(windows, RNG)[counts], wanted.detach()[counts])
    d_state = net.backward(dy)
    assert d_state is not None
    assert state.grad is not None
    torch.testing.assert_close(d_state, state.grad[:, : spec.num_features])
    for name, leaf in leaves.items():
        torch.testing.assert_close(grads[name], leaf.grad, msg=lambda m, name=name: f"{name}: {m}")


def test_with_dropout_the_gradient_is_the_slope_of_what_was_drawn() -> None:
    spec = dataclasses.replace(SPEC, dropout=0.3, heads=2)
    weights, grads = make(spec)
    windows, dy = random_windows(spec, [6, 4]), torch.randn(12, 4)
    dy *= windows.valid.view(-1, 1)
    net = spec.learner(weights, grads, 2)

    def loss() -> float:
        return float((net.forward(windows, np.random.default_rng(5)) * dy).sum())

    assert loss() != float((net.forward(windows, np.random.default_rng(6)) * dy).sum())
    loss()
    net.backward(dy)
    for name in ("time", "embed.state.weight", "block0.query.weight", "block1.key.weight", "block0.value.weight",
                 "block0.mix.bias", "block1.contract.weight", "norm.gain"):  # fmt: skip
        way, start = torch.randn(weights[name].shape), weights[name].clone()
        up, down = (weights[name].copy_(start + step * way) is not None and loss() for step in (1e-6, -1e-6))
        weights[name].copy_(start)
        assert (up - down) / 2e-6 == pytest.approx(float((grads[name] * way).sum()), rel=1e-5, abs=1e-7), name


def test_an_output_sees_the_past_and_its_own_state_and_nothing_else() -> None:
    weights, grads = make(SPEC)
    net, windows = SPEC.learner(weights, grads, 1), random_windows(SPEC, [6])
    before = net.forward(windows, RNG).clone()
    for name, first_changed in (("state", 3), ("return_to_go", 3), ("action", 4)):
        other = getattr(windows, name).clone()
        other[3] += 1.0
        after = net.forward(windows._replace(**{name: other}), RNG)
        differs = (after - before).abs().amax(1) > 0
        assert differs.tolist() == [k >= first_changed for k in range(6)], name


def test_padding_says_nothing_and_a_padded_window_is_a_shorter_one() -> None:
    weights, grads = make(SPEC)
    windows = random_windows(SPEC, [4, 1])
    net = SPEC.learner(weights, grads, 2)
    outputs = net.forward(windows, RNG).clone()
    padded = windows.valid.flatten() == 0
    other = windows._replace(state=torch.where(padded[:, None], 1e3, windows.state), t=windows.t * (~padded))
    counts = ~padded
    assert torch.equal(net.forward(other, RNG)[counts], outputs[counts])
    short = dataclasses.replace(SPEC, steps=4)
    rows = slice(2, 6)
    cut = WindowInputs(*(leaf[rows] for leaf in windows[:4]), windows.valid[:1, 2:])
    alone = short.learner(weights, grads, 1).forward(cut, RNG)
    torch.testing.assert_close(alone, outputs[rows])


@pytest.mark.parametrize("heads", [1, 3])
def test_the_cache_says_what_the_whole_window_says_while_the_episode_fits(heads: int) -> None:
    spec = dataclasses.replace(SPEC, heads=heads)
    weights, grads = make(spec)
    windows = random_windows(spec, [6, 6])
    t = torch.arange(6, dtype=torch.int32).repeat(2)
    rewards = torch.randn(2, 6)
    scale, target = 2.0, 3.0
    gathered = torch.cat((torch.zeros(2, 1), rewards.cumsum(1)[:, :-1]), 1)
    windows = windows._replace(t=t, return_to_go=((target - gathered) / scale).view(-1, 1))
    wanted = spec.learner(weights, grads, 2).forward(windows, RNG).view(2, 6, -1)
    narrow = {name: view.float() for name, view in weights.items()}  # memory is float32, and so must be the rest
    actor = spec.actor(narrow, torch.tensor([scale, target], dtype=torch.float32))
    memory = np.zeros((2, actor.memory_size), np.float32)
    state, action = (leaf.view(2, 6, -1).float() for leaf in (windows.state, windows.action))
    for k in range(6):
        outputs, after = actor.step(state[:, k], memory)
        torch.testing.assert_close(outputs.double(), wanted[:, k], atol=1e-5, rtol=1e-5)
        assert after is not memory
        actor.note_action(after, action[:, k].numpy())
        memory = actor.note_reward(after, rewards[:, k].float().numpy())


def test_one_block_sees_exactly_the_window_however_long_the_episode() -> None:
    """With one block keys and values depend on their own token alone: cached ones never grow stale."""
    spec = dataclasses.replace(SPEC, layers=1, times=30)
    weights, grads = make(spec)
    narrow = {name: view.float() for name, view in weights.items()}
    actor, net = spec.actor(narrow, torch.tensor([1.0, 0.0], dtype=torch.float32)), spec.learner(weights, grads, 1)
    state, action = torch.randn(20, 5), torch.randn(20, 3)
    memory = np.zeros((1, actor.memory_size), np.float32)
    for k in range(20):
        outputs, memory = actor.step(state[k : k + 1].float(), memory)
        actor.note_action(memory, action[k : k + 1].float().numpy())
        if k >= 5:
            rows = slice(k - 5, k + 1)
            t = torch.arange(k - 5, k + 1, dtype=torch.int32)
            window = WindowInputs(state[rows], action[rows], torch.zeros(6, 1), t, torch.ones(1, 6))
            torch.testing.assert_close(outputs.double()[0], net.forward(window, RNG)[-1], atol=1e-5, rtol=1e-5)


def test_dropout_keeps_the_mean_and_draws_by_the_caller() -> None:
    dropout = Dropout(0.1, {"a": (100, 300), "b": (7,)})
    dropout.draw(np.random.default_rng(0))
    first = dropout.places["a"].times(torch.ones(100, 300))
    assert first.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (first == 0).double().mean().item() == pytest.approx(26 / LEVELS, abs=0.01)
    dropout.draw(np.random.default_rng(0))
    assert torch.equal(dropout.places["a"].times(torch.ones(100, 300)), first)
    x, y = torch.randn(7), torch.randn(7)
    torch.testing.assert_close(dropout.places["b"].add(x, y), x + dropout.places["b"].times(y))
