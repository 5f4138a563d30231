"""The transformer against a plain one, shorter windows and its own cache; dropout by given masks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roboloop.nets.dropout import LEVELS, draw_keeps
from roboloop.nets.transformer import GATHERED, LAST_ACTION, STATE, TOKENS, Transformer, WindowSteps

SIZES: dict[str, int] = {
    "state_dim": 5, "action_dim": 3, "outputs": 4, "steps": 6, "times": 9, "width": 12, "layers": 2, "heads": 1,
}  # fmt: skip
KINDS = [{}, {"heads": 3, "layers": 3}, {"layers": 1, "state_dim": 20}]


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    """Everything here is computed in float64, so that differences are faults and not rounding."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def make(**change: int) -> Transformer:
    """Return a transformer with random weights, larger than the first ones."""
    net = Transformer(**(SIZES | change))
    for parameter in net.parameters():
        parameter.data.add_(torch.randn(parameter.shape), alpha=0.2)
    return net


def random_steps(lengths: list[int], steps: int = 6, state_dim: int = 5) -> WindowSteps:
    """Return windows of the given numbers of steps, padded on the left with what should not matter."""
    rows = len(lengths) * steps
    valid = torch.tensor([[k >= steps - length for k in range(steps)] for length in lengths]).flatten()
    t = torch.randint(0, SIZES["times"], (rows,), dtype=torch.int32)
    return WindowSteps(torch.randn(rows, 1), torch.randn(rows, state_dim), torch.randn(rows, 3), t, valid)


def plainly(net: Transformer, heads: int, windows: WindowSteps, steps: int = 6) -> Tensor:
    """Return what the network should compute, all tokens through all layers."""
    n = len(windows.t) // steps
    tokens = [layer(x) + net.time[windows.t.long()] for layer, x in zip(net.embed, windows[:3], strict=True)]
    x = net.norm_in(torch.stack(tokens, 1).view(n, 3 * steps, -1))
    seen = windows.valid.view(n, steps).repeat_interleave(3, 1)[:, None, None]
    seen = seen & torch.ones(3 * steps, 3 * steps).tril().bool()
    for block in net.blocks:
        part: Any = block
        h = part.norm1(x)
        q, k, v = (layer(h).unflatten(2, (heads, -1)).transpose(1, 2) for layer in (part.query, part.key, part.value))
        scores = q @ k.mT / math.sqrt(q.shape[3])
        x = x + part.mix((scores.masked_fill(~seen, -1e9).softmax(3) @ v).transpose(1, 2).flatten(2))
        x = x + part.contract(part.expand(part.norm2(x)).relu())
    outputs: Tensor = net.head(net.norm(x).view(n * steps, 3, -1)[:, STATE])
    return outputs


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_those_of_a_plain_one(kind: dict[str, int]) -> None:
    net, windows = make(**kind), random_steps([6, 4, 1], state_dim=kind.get("state_dim", 5))
    outputs, wanted = net(windows, {}), plainly(net, kind.get("heads", 1), windows)
    torch.testing.assert_close(outputs[windows.valid], wanted[windows.valid])
    dy = torch.randn(wanted.shape) * windows.valid.unsqueeze(1)
    names, parameters = zip(*net.named_parameters(), strict=True)
    found, right = (torch.autograd.grad(y, parameters, dy) for y in (outputs, wanted))
    for name, a, b in zip(names, found, right, strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


def test_an_output_sees_the_past_and_its_own_state_and_nothing_else() -> None:
    net, windows = make(), random_steps([6])
    before = net(windows, {})
    for name, first_changed in (("state", 3), ("return_to_go", 3), ("action", 4)):
        other = getattr(windows, name).clone()
        other[3] += 1.0
        differs = (net(windows._replace(**{name: other}), {}) - before).abs().amax(1) > 0
        assert differs.tolist() == [k >= first_changed for k in range(6)], name


def test_padding_says_nothing_and_a_padded_window_is_a_shorter_one() -> None:
    net, windows = make(), random_steps([4, 1])
    outputs, valid = net(windows, {}), windows.valid
    other = windows._replace(state=torch.where(valid[:, None], windows.state, 1e3), t=windows.t * valid)
    assert torch.equal(net(other, {})[valid], outputs[valid])
    short, rows = Transformer(**(SIZES | {"steps": 4})), slice(2, 6)
    short.load_state_dict(net.state_dict())
    torch.testing.assert_close(short(WindowSteps(*(leaf[rows] for leaf in windows)), {}), outputs[rows])


def narrow(net: Transformer, **change: int) -> Transformer:
    """Return a copy in float32, as memory is."""
    copy = Transformer(**(SIZES | change)).float()
    copy.load_state_dict(net.state_dict())
    return copy


@pytest.mark.parametrize("heads", [1, 3])
def test_the_cache_says_what_the_whole_window_says_while_the_episode_fits(heads: int) -> None:
    net, windows = make(heads=heads), random_steps([6, 6])
    windows = windows._replace(t=torch.arange(6, dtype=torch.int32).repeat(2))
    wanted, actor = net(windows, {}).view(2, 6, -1), narrow(net, heads=heads)
    memory = torch.zeros(2, actor.memory_size, dtype=torch.float32)
    to_go, state, action = (leaf.view(2, 6, -1).float() for leaf in windows[:3])
    for k in range(6):
        outputs = actor.step(state[:, k], to_go[:, k], memory)
        torch.testing.assert_close(outputs.double(), wanted[:, k], atol=1e-5, rtol=1e-5)
        actor.note_action(memory, action[:, k])
        assert memory[:, :LAST_ACTION].tolist() == [[k + 1, 0.0]] * 2
        assert GATHERED == 1


def test_one_block_sees_exactly_the_window_however_long_the_episode() -> None:
    """With one block keys and values depend on their own token alone: cached ones never grow stale."""
    net = make(layers=1, times=30)
    actor, state, action = narrow(net, layers=1, times=30), torch.randn(20, 5), torch.randn(20, 3)
    memory = torch.zeros(1, actor.memory_size, dtype=torch.float32)
    zero = torch.zeros(1, 1, dtype=torch.float32)
    for k in range(20):
        outputs = actor.step(state[k : k + 1].float(), zero, memory)
        actor.note_action(memory, action[k : k + 1].float())
        if k >= 5:
            rows, t = slice(k - 5, k + 1), torch.arange(k - 5, k + 1, dtype=torch.int32)
            window = WindowSteps(torch.zeros(6, 1), state[rows], action[rows], t, torch.ones(6, dtype=torch.bool))
            torch.testing.assert_close(outputs.double()[0], net(window, {})[-1], atol=1e-5, rtol=1e-5)


def test_steps_later_than_any_that_is_told_apart_look_like_the_last() -> None:
    net, windows = make(), random_steps([6])
    late, last = (windows._replace(t=torch.full_like(windows.t, t)) for t in (1000, SIZES["times"] - 1))
    assert torch.equal(net(late, {}), net(last, {}))


def test_dropout_keeps_the_mean_and_draws_by_the_caller() -> None:
    mask, other, ones = torch.empty(100, 300), torch.empty(7), torch.ones(100, 300)
    draw_keeps(0.1, np.random.default_rng(0), [mask, other])
    assert mask.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (mask == 0).double().mean().item() == pytest.approx(26 / LEVELS, abs=0.01)
    assert set(mask.unique().tolist()) == {0.0, LEVELS / (LEVELS - 26)}
    draw_keeps(0.1, np.random.default_rng(0), [ones])
    assert torch.equal(mask, ones)


@pytest.mark.parametrize("heads", [1, 3])
def test_dropout_is_where_the_paper_has_it(heads: int) -> None:
    net, windows = make(heads=heads), random_steps([6, 4])
    shapes = net.dropped(2)
    assert set(shapes) == {"tokens", *(f"{place}{i}" for place in ("scores", "mix", "contract") for i in range(2))}
    ones = {place: torch.ones(shape) for place, shape in shapes.items()}
    assert torch.equal(net(windows, ones), net(windows, {}))

    def without(*places: str) -> Tensor:
        outputs: Tensor = net(windows, {p: m * float(p not in places) for p, m in ones.items()})
        return outputs

    alone = nn.Sequential(net.norm, net.head)
    tokens = torch.stack([layer(x) for layer, x in zip(net.embed, windows[:TOKENS], strict=True)], 1)
    tokens = net.norm_in(tokens + net.time[windows.t.long()].unsqueeze(1))
    torch.testing.assert_close(without("mix0", "contract0", "mix1", "contract1"), alone(tokens[:, STATE]))
    torch.testing.assert_close(without("tokens", "scores0", "scores1").std(0), torch.zeros(4), atol=1e-9, rtol=0)
