"""The causal transformer over (return to go, state, action) tokens of arXiv:2106.01345, with its backward pass by hand.

Pre-norm blocks as in GPT-2, without positions of their own: a learned embedding of the step within the episode is added
to the step's three tokens. An action is predicted from its state's token, which sees all that came before and nothing
of what comes after. Only those tokens are of use behind the last attention, so the last block computes no others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roboloop.nets.dropout import Keeps, make_dropout
from roboloop.nets.flat import Views, prefixed, under
from roboloop.nets.kv_cache import CachedTransformer
from roboloop.nets.layers import LayerNorm, Linear, ReLU, Scratch, as_in_out, weight_shape
from roboloop.nets.mlp import Shapes
from roboloop.nets.windows import STATE, TOKENS, UNSEEN, WindowInputs

INNER = 4
"""Width of a block's hidden layer, in widths of a token."""
INITIAL_STD = 0.02


@dataclass(frozen=True)
class TransformerSpec:
    """All sizes of the transformer."""

    state_dim: int
    num_features: int
    """Columns of a state that pictures fill: those whose gradient is wanted."""
    action_dim: int
    outputs: int
    steps: int
    """Steps per window; each is three tokens."""
    times: int
    """Steps of an episode that are told apart; later ones look like the last."""
    width: int
    layers: int
    heads: int
    dropout: float

    def shapes(self) -> Shapes:
        """Return the parameter names and shapes."""
        d = self.width
        shapes: Shapes = {"time": (self.times, d)}
        inputs = dict(zip(TOKENS, (1, self.state_dim, self.action_dim), strict=True))
        for name, size in inputs.items():
            shapes |= prefixed(f"embed.{name}", _dense(size, d))
        shapes |= prefixed("embed.norm", _norm(d))
        for i in range(self.layers):
            parts = {
                **{name: _dense(d, d) for name in ("query", "key", "value", "mix")},
                "expand": _dense(d, INNER * d), "contract": _dense(INNER * d, d), "norm1": _norm(d), "norm2": _norm(d),
            }  # fmt: skip
            for name, part in parts.items():
                shapes |= prefixed(f"block{i}.{name}", part)
        return shapes | prefixed("norm", _norm(d)) | prefixed("head", _dense(d, self.outputs))

    def initialise(self, weights: Views, rng: np.random.Generator) -> None:
        """Fill as GPT-2 does; embeddings of tokens and the head are drawn as wide as their inputs ask for."""
        for name, view in weights.items():
            layer, kind = name.rsplit(".", 1) if "." in name else (name, "weight")
            if kind == "gain":
                view.fill_(1.0)
            elif kind == "bias":
                view.zero_()
            else:
                std = INITIAL_STD
                if layer.startswith("embed") or layer == "head":
                    std = 1.0 / math.sqrt(3.0 * as_in_out(view, weights[f"{layer}.bias"]).shape[0])
                if layer.endswith(("mix", "contract")):  # what blocks add up should not grow with their number
                    std /= math.sqrt(2.0 * self.layers)
                values = rng.standard_normal(tuple(view.shape), dtype=np.float32)
                view.copy_(torch.from_numpy(values).mul_(std))

    def learner(self, weights: Views, grads: Views, windows: int) -> Transformer:
        """Return the network that learns from so many windows at once."""
        return Transformer(self, weights, grads, windows)

    def actor(self, weights: Views, return_norm: Tensor) -> CachedTransformer:
        """Return the network that acts step by step."""
        return CachedTransformer(weights, return_norm, self.steps, self.layers, self.heads)


class Embedding:
    """The three kinds of tokens, each a linear function of its numbers plus the embedding of its time."""

    def __init__(self, spec: TransformerSpec, weights: Views, grads: Views, windows: int) -> None:
        self._time, self._d_time = weights["time"], grads["time"]
        layers = [(under(f"embed.{name}", weights), under(f"embed.{name}", grads)) for name in TOKENS]
        self._layers = [(as_in_out(w["weight"], w["bias"]), w["bias"]) for w, _ in layers]
        self._grads = [(as_in_out(g["weight"], g["bias"]), g["bias"]) for _, g in layers]
        self._features_t = self._layers[STATE][0][: spec.num_features].t()
        self._tokens = torch.empty(windows * spec.steps, len(TOKENS), spec.width, device=self._time.device)

    def forward(self, windows: WindowInputs) -> Tensor:
        """Return the tokens ``[rows * 3, width]``."""
        self._t, self._inputs = windows.t, (windows.return_to_go, windows.state, windows.action)
        time = self._time.index_select(0, windows.t)
        for i, (x, (weight, bias)) in enumerate(zip(self._inputs, self._layers, strict=True)):
            torch.addmm(time + bias, x, weight, out=self._tokens[:, i])
        return self._tokens.view(-1, self._tokens.shape[2])

    def backward(self, d_tokens: Tensor) -> Tensor | None:
        """Write the gradient of every weight; return that of the states' columns that pictures fill."""
        by_kind = d_tokens.view(self._tokens.shape)
        for i, (x, (d_weight, d_bias)) in enumerate(zip(self._inputs, self._grads, strict=True)):
            torch.mm(x.t(), by_kind[:, i], out=d_weight)
            torch.sum(by_kind[:, i], 0, out=d_bias)
        self._d_time.zero_().index_add_(0, self._t, by_kind.sum(1))
        return by_kind[:, STATE] @ self._features_t if self._features_t.shape[1] else None


class Attention:
    """Softmax attention of some tokens' queries to all tokens of their window, for n windows."""

    def __init__(self, spec: TransformerSpec, windows: int, keeps: Keeps) -> None:
        self._n, self._heads, self._size = windows, spec.heads, spec.width // spec.heads
        self._scale = 1.0 / math.sqrt(self._size)
        self._keeps = keeps

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Return what each query gathers; ``bias [n * heads, queries, keys]`` hides tokens."""
        self._q, self._k, self._v = self._split(query), self._split(key), self._split(value)
        self._p = torch.baddbmm(bias, self._q, self._k.transpose(1, 2), alpha=self._scale).softmax(2)
        self._kept = self._keeps.times(self._p)
        return self._merge(torch.bmm(self._kept, self._v))

    def backward(self, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value."""
        dy = self._split(dy)
        d_p = self._keeps.times(torch.bmm(dy, self._v.transpose(1, 2)))
        d_v = torch.bmm(self._kept.transpose(1, 2), dy)
        d_scores: Tensor = torch.ops.aten._softmax_backward_data(d_p, self._p, 2, d_p.dtype).mul_(self._scale)
        d_q, d_k = torch.bmm(d_scores, self._k), torch.bmm(d_scores.transpose(1, 2), self._q)
        return self._merge(d_q), self._merge(d_k), self._merge(d_v)

    def _split(self, rows: Tensor) -> Tensor:
        """Turn rows ``[n * tokens, width]`` into ``[n * heads, tokens, size]``; with one head it is the same memory."""
        by_head = rows.view(self._n, -1, self._heads, self._size).transpose(1, 2)
        return by_head.reshape(self._n * self._heads, -1, self._size)

    def _merge(self, by_head: Tensor) -> Tensor:
        """Undo ``_split``."""
        by_token = by_head.view(self._n, self._heads, -1, self._size).transpose(1, 2)
        return by_token.reshape(-1, self._heads * self._size)


class Block:
    """x + attention, then + two dense layers; ``states_only`` goes on with the state tokens alone."""

    def __init__(
        self, spec: TransformerSpec, weights: Views, grads: Views, windows: int, scratch: Scratch, states_only: bool
    ) -> None:
        def linear(name: str, rows: int) -> Linear:
            part = under(name, weights)
            y = torch.empty(rows, len(part["bias"]), device=part["bias"].device)
            return Linear(part, under(name, grads), y, scratch, name)

        d, tokens = spec.width, len(TOKENS) * spec.steps
        queries = spec.steps if states_only else tokens
        rows, self._shape = windows * queries, (windows * spec.steps, len(TOKENS), d)
        self._states_only = states_only
        places: Shapes = {"scores": (windows * spec.heads, queries, tokens), "mix": (rows, d), "contract": (rows, d)}
        self._dropout = make_dropout(spec.dropout, places, weights["mix.bias"].device)
        self._norm1, self._norm2 = (LayerNorm(under(n, weights), under(n, grads)) for n in ("norm1", "norm2"))
        self._query = linear("query", rows)
        self._key, self._value = linear("key", windows * tokens), linear("value", windows * tokens)
        self._attention = Attention(spec, windows, self._dropout.places["scores"])
        self._mix, self._expand, self._contract = (linear(name, rows) for name in ("mix", "expand", "contract"))
        self._relu = ReLU()

    def forward(self, x: Tensor, bias: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the tokens after the block."""
        self._dropout.draw(rng)
        keeps = self._dropout.places
        h = self._norm1.forward(x)
        query, key, value = self._query.forward(self._asking(h)), self._key.forward(h), self._value.forward(h)
        gathered = self._attention.forward(query, key, value, bias)
        x = keeps["mix"].add(self._asking(x), self._mix.forward(gathered))
        hidden = self._relu.forward(self._expand.forward(self._norm2.forward(x)))
        return keeps["contract"].add(x, self._contract.forward(hidden))

    def backward(self, dy: Tensor) -> Tensor:
        """Write the gradient of every weight; return that of the tokens before the block."""
        keeps = self._dropout.places
        d_hidden = self._relu.backward(back(self._contract, keeps["contract"].times(dy)), True)
        d_mid = self._norm2.backward(back(self._expand, d_hidden), True).add_(dy)
        d_query, d_key, d_value = self._attention.backward(back(self._mix, keeps["mix"].times(d_mid)))
        dh = back(self._key, d_key)
        self._value.backward_onto(d_value, dh)
        self._query.backward_onto(d_query, self._asking(dh))
        dx = self._norm1.backward(dh, True)
        self._asking(dx).add_(d_mid)
        return dx

    def _asking(self, tokens: Tensor) -> Tensor:
        """Return a view of the tokens whose queries are of use."""
        return tokens.view(self._shape)[:, STATE] if self._states_only else tokens


class Transformer:
    """From windows to outputs, one row per step, for a fixed number of windows."""

    def __init__(self, spec: TransformerSpec, weights: Views, grads: Views, windows: int) -> None:
        device = weights["time"].device
        scratch = Scratch(device)
        self._heads, tokens = spec.heads, len(TOKENS) * spec.steps
        self._embedding = Embedding(spec, weights, grads, windows)
        self._norm_in, self._norm_out = (LayerNorm(under(n, weights), under(n, grads)) for n in ("embed.norm", "norm"))
        self._dropout = make_dropout(spec.dropout, {"tokens": (windows * tokens, spec.width)}, device)
        self._blocks = [
            Block(spec, under(f"block{i}", weights), under(f"block{i}", grads), windows, scratch, i == spec.layers - 1)
            for i in range(spec.layers)
        ]
        y = scratch.take("head.y", windows * spec.steps, spec.outputs)
        self._head = Linear(under("head", weights), under("head", grads), y, scratch, "head")
        self._causal = torch.full((tokens, tokens), UNSEEN, device=device).triu_(1)

    def forward(self, windows: WindowInputs, rng: np.random.Generator) -> Tensor:
        """Return outputs ``[rows, outputs]``, those of padded steps without meaning."""
        bias, state_bias = self._biases(windows.valid)
        self._dropout.draw(rng)
        x = self._dropout.places["tokens"].times(self._norm_in.forward(self._embedding.forward(windows)))
        for block in self._blocks[:-1]:
            x = block.forward(x, bias, rng)
        x = self._blocks[-1].forward(x, state_bias, rng)
        return self._head.forward(self._norm_out.forward(x))

    def backward(self, dy: Tensor) -> Tensor | None:
        """Write the gradient of every weight; return that of the states' columns that pictures fill."""
        dx = self._norm_out.backward(back(self._head, dy), True)
        for block in reversed(self._blocks):
            dx = block.backward(dx)
        return self._embedding.backward(self._norm_in.backward(self._dropout.places["tokens"].times(dx), True))

    def _biases(self, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return what hides the future and the padding, ``[n * heads, queries, keys]``: of all tokens, of states."""
        hidden = (1.0 - valid).mul_(UNSEEN).repeat_interleave(len(TOKENS), dim=1)
        bias = self._causal + hidden.unsqueeze(1)
        if self._heads > 1:
            bias = bias.repeat_interleave(self._heads, dim=0)
        return bias, bias[:, STATE :: len(TOKENS)]


def back(layer: Linear, dy: Tensor) -> Tensor:
    """Write a layer's gradients; return that of its inputs, in memory that its next pass overwrites."""
    dx = layer.backward(dy, need_dx=True)
    assert dx is not None
    return dx


def _dense(inputs: int, outputs: int) -> Shapes:
    return {"weight": weight_shape(inputs, outputs), "bias": (outputs,)}


def _norm(width: int) -> Shapes:
    return {"gain": (width,), "bias": (width,)}
