"""The causal transformer over (return to go, state, action) tokens of arXiv:2106.01345.

Pre-norm blocks as in GPT-2, without positions of their own: a learned embedding of the step within the episode is added
to the step's three tokens. An action is predicted from its state's token, which sees all that came before and nothing
of what comes after. Only those tokens are of use behind the last attention, so the last block computes no others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from roboloop.nets.dropout import Keeps, kept, plus_kept

RETURN, STATE, ACTION = range(3)
TOKENS = 3
"""What it sees of a step, in this order."""
INNER = 4
"""Width of a block's hidden layer, in widths of a token."""
INITIAL_STD = 0.02
UNSEEN = -1e9
"""Score of a token that must not be looked at: its probability is exactly zero."""


T, GATHERED, LAST_ACTION = range(3)
"""Where in a row of memory the step, the reward so far and the last action, encoded, begin; behind it lie keys and
values ``[layers, 2, K, 3, width]``: those of step ``t`` in slot ``t mod K``, where they overwrite the oldest."""
NEW = (ACTION, RETURN, STATE)
"""Tokens of one step of acting: the action of the step before, known only now, then this step's return and state."""


class WindowSteps(NamedTuple):
    """N windows of K steps, one step per row: row ``window * K + step``; all numbers are finite, also where padded."""

    return_to_go: Tensor  # [N * K, 1] scaled
    state: Tensor  # [N * K, S]
    action: Tensor  # [N * K, A] encoded
    t: Tensor  # [N * K] int32, step within the episode
    valid: Tensor  # [N * K] bool, false where padded


class Block(nn.Module):
    """x + attention, then + two dense layers."""

    def __init__(self, width: int, heads: int, number: int) -> None:
        super().__init__()
        self._heads, self._scale = heads, math.sqrt(heads / width)
        self._scores, self._mix, self._contract = (f"{place}{number}" for place in ("scores", "mix", "contract"))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.contract = nn.Linear(width, INNER * width), nn.Linear(INNER * width, width)

    def forward(self, x: Tensor, bias: Tensor, keeps: Keeps, states_only: bool) -> Tensor:
        """Return the tokens ``[N * 3 K, width]`` after the block, or those of states alone.

        ``bias [N * heads, queries, keys]`` hides tokens.
        """
        h = self.norm1(x)
        x, asking = (states_of(x), states_of(h)) if states_only else (x, h)
        windows = len(bias) // self._heads
        q, k, v = (self._by_head(y, windows) for y in (self._scaled_query(asking), self.key(h), self.value(h)))
        p = kept(keeps, self._scores, torch.baddbmm(bias, q, k.mT).softmax(2))
        gathered = (p @ v).view(windows, self._heads, -1, q.shape[2]).transpose(1, 2).reshape(x.shape)
        x = plus_kept(x, keeps, self._mix, self.mix(gathered))
        return plus_kept(x, keeps, self._contract, self._dense(x))

    def step(self, x: Tensor, cache: Tensor, places: Tensor, bias: Tensor) -> Tensor:
        """Return new tokens ``[B, 3, width]`` after the block; theirs is written to ``cache [B, 2, places, width]``."""
        rows, new, width = x.shape
        h = self.norm1(x)
        key_value = torch.stack((self.key(h), self.value(h)), 1)
        cache.scatter_(2, places.view(rows, 1, new, 1).expand(rows, 2, new, width), key_value)
        q, k, v = (
            y.view(rows, -1, self._heads, width // self._heads).transpose(1, 2)
            for y in (self._scaled_query(h), cache[:, 0], cache[:, 1])
        )
        p = (q @ k.mT + bias.unsqueeze(1)).softmax(3)
        x = x + self.mix((p @ v).transpose(1, 2).flatten(2))
        return x + self._dense(x)

    def _scaled_query(self, h: Tensor) -> Tensor:
        # to scale weights is cheaper than to scale queries or scores
        return linear(h, self.query.weight * self._scale, self.query.bias * self._scale)

    def _dense(self, x: Tensor) -> Tensor:
        y: Tensor = self.contract(self.expand(self.norm2(x)).relu())
        return y

    def _by_head(self, rows: Tensor, windows: int) -> Tensor:
        """Turn rows ``[N * tokens, width]`` into ``[N * heads, tokens, size]``; of one head it is the same memory."""
        by_head = rows.view(windows, -1, self._heads, rows.shape[1] // self._heads).transpose(1, 2)
        return by_head.reshape(windows * self._heads, -1, by_head.shape[3])


class Transformer(nn.Module):
    """From windows of steps to one row of outputs per step; or step by step, with a cache."""

    blocks: Any
    causal: Tensor
    places: Tensor
    hidden: Tensor

    def __init__(
        self, state_dim: int, action_dim: int, outputs: int, steps: int, times: int, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self._steps, self._heads, self._times = steps, heads, times
        self.time = nn.Parameter(torch.empty(times, width))
        self.embed = nn.ModuleList(nn.Linear(size, width) for size in (1, state_dim, action_dim))
        self.norm_in, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, i) for i in range(layers))
        self.head = nn.Linear(width, outputs)
        self._initialise()
        causal = torch.full((TOKENS * steps, TOKENS * steps), UNSEEN).triu_(1)
        self.register_buffer("causal", causal, persistent=False)
        self._cache_at = LAST_ACTION + action_dim
        self._cache_shape = (layers, 2, TOKENS * steps, width)
        self.memory_size = self._cache_at + math.prod(self._cache_shape)
        places, hidden = ring(steps)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("hidden", hidden, persistent=False)

    def _initialise(self) -> None:
        """Draw weights as GPT-2 does; those of tokens' embeddings and of the head as wide as their inputs ask for."""
        self.time.data.normal_(0.0, INITIAL_STD)
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear):
                std = INITIAL_STD
                if name.startswith("embed") or name == "head":
                    std = 1.0 / math.sqrt(3.0 * layer.in_features)
                if name.endswith(("mix", "contract")):  # what blocks add up should not grow with their number
                    std /= math.sqrt(2.0 * len(self.blocks))
                layer.weight.data.normal_(0.0, std)
                layer.bias.data.zero_()

    def dropped(self, windows: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of the masks of dropout, for so many windows."""
        width, tokens, last = self.time.shape[1], TOKENS * self._steps, len(self.blocks) - 1
        shapes: dict[str, tuple[int, ...]] = {"tokens": (windows * tokens, width)}
        for i in range(len(self.blocks)):
            queries = self._steps if i == last else tokens
            shapes[f"scores{i}"] = (windows * self._heads, queries, tokens)
            shapes |= {f"mix{i}": (windows * queries, width), f"contract{i}": (windows * queries, width)}
        return shapes

    def forward(self, steps: WindowSteps, keeps: Keeps) -> Tensor:
        """Return outputs ``[N * K, outputs]``, those of padded steps without meaning."""
        bias = self._bias(steps.valid)
        tokens = [layer(x) for layer, x in zip(self.embed, steps[:TOKENS], strict=True)]
        x = torch.stack(tokens, 1) + embedding(steps.t.clamp_max(self._times - 1), self.time).unsqueeze(1)
        x = kept(keeps, "tokens", self.norm_in(x.flatten(0, 1)))
        for block in self.blocks[:-1]:
            x = block(x, bias, keeps, states_only=False)
        x = self.blocks[-1](x, bias[:, STATE::TOKENS], keeps, states_only=True)
        outputs: Tensor = self.head(self.norm(x))
        return outputs

    def _bias(self, valid: Tensor) -> Tensor:
        """Return what hides the future and the padding, ``[N * heads, tokens, tokens]``."""
        hidden = (~valid).to(self.causal.dtype) * UNSEEN
        by_token = hidden.view(-1, 1, self._steps, 1).expand(-1, self._heads, -1, TOKENS)
        return self.causal + by_token.reshape(-1, 1, TOKENS * self._steps)

    def step(self, state: Tensor, to_go: Tensor, memory: Tensor) -> Tensor:
        """Return the outputs of one more step ``[B, outputs]``, and write it to ``memory [B, memory_size]``.

        ``state [B, S]`` and ``to_go [B, 1]`` are of this step; the last action lies in the memory.
        """
        t = memory[:, T].long()
        row = t % self._steps + self._steps * (t >= self._steps)
        places, bias = self.places.index_select(0, row), self.hidden.index_select(0, row)
        inputs = {RETURN: to_go, STATE: state, ACTION: memory[:, LAST_ACTION : self._cache_at]}
        times = torch.stack([t - int(kind == ACTION) for kind in NEW], 1).clamp(0, self._times - 1)
        tokens = torch.stack([self.embed[kind](inputs[kind]) for kind in NEW], 1)
        x = self.norm_in(tokens + embedding(times, self.time))
        memory[:, T] += 1.0
        caches = memory[:, self._cache_at :].view(-1, *self._cache_shape)
        for i, block in enumerate(self.blocks):
            x = block.step(x, caches[:, i], places, bias)
        outputs: Tensor = self.head(self.norm(x[:, NEW.index(STATE)]))
        return outputs

    def note_action(self, memory: Tensor, action: Tensor) -> None:
        """Write the encoded action that the step led to: it becomes a token of the next."""
        memory[:, LAST_ACTION : self._cache_at] = action


def states_of(tokens: Tensor) -> Tensor:
    """Return a view of the states' tokens ``[N * K, width]``."""
    return tokens.view(-1, TOKENS, tokens.shape[1])[:, STATE]


def ring(steps: int) -> tuple[Tensor, Tensor]:
    """Return where new tokens lie ``[2 K, 3]`` and what hides others from them ``[2 K, 3, places]``, by step.

    From step K on all slots are full: step ``t`` is then as step ``K + t mod K`` is.
    """
    t = torch.arange(2 * steps)
    age = (t.unsqueeze(1) - torch.arange(steps)) % steps  # of the step that lies in a slot, or would if it had been
    exists, past = age <= t.unsqueeze(1), age > 0
    # whatever belongs to this step was not there when the last action was taken; of it the state sees the return
    nothing = torch.zeros_like(past)
    of_this_step = {ACTION: (), RETURN: (RETURN,), STATE: (RETURN, STATE)}
    seen = [
        torch.stack([past | (~nothing if kind in of_this_step[new] else nothing) for kind in range(TOKENS)], 2)
        for new in NEW
    ]
    hidden = torch.where(torch.stack(seen, 1) & exists[:, None, :, None], 0.0, UNSEEN).flatten(2)
    places = torch.stack([(t - int(new == ACTION)) % steps * TOKENS + new for new in NEW], 1)
    return places, hidden
