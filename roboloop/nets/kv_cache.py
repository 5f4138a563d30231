"""The transformer acting step by step: keys and values of the last steps are kept, not computed again.

A row of memory, all zero when an episode begins, is

    step | gathered reward | previous action, encoded | keys and values [layers, 2, slots, 3, width]

Step ``t`` lies in slot ``t mod slots``, its three tokens side by side; a new step overwrites the oldest.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from roboloop.core.types import Array
from roboloop.nets.flat import Views
from roboloop.nets.layers import NORM_EPS, as_in_out
from roboloop.nets.windows import ACTION, RETURN, STATE, TOKENS, UNSEEN

T, GATHERED, LAST_ACTION = 0, 1, 2
"""Where in a row of memory the step, the reward so far and the last action lie."""
NEW = (ACTION, RETURN, STATE)
"""Tokens of one call: the action of the step before, which is known only now, then this step's return and state."""


class CachedTransformer:
    """Acts by weights that a trainer may go on changing."""

    def __init__(self, weights: Views, return_norm: Tensor, steps: int, layers: int, heads: int) -> None:
        self._return_norm, self._steps, self._layers, self._heads = return_norm, steps, layers, heads
        self._time = weights["time"]
        names = [name.removesuffix(".bias") for name in weights if name.endswith(".bias")]
        # looked up once: names would take longer than the products of a few rows
        self._dense = {
            name: (as_in_out(weights[f"{name}.weight"], weights[f"{name}.bias"]).t(), weights[f"{name}.bias"])
            for name in names
            if f"{name}.weight" in weights
        }
        self._norms = {n: (weights[f"{n}.gain"], weights[f"{n}.bias"]) for n in names if f"{n}.gain" in weights}
        self._cache_at = LAST_ACTION + self._dense["embed.action"][0].shape[1]
        self._cache_shape = (layers, 2, steps * len(TOKENS), self._time.shape[1])
        self.memory_size = self._cache_at + math.prod(self._cache_shape)

    def step(self, state: Tensor, memory: Array) -> tuple[Tensor, Array]:
        """Return the outputs of states ``[B, S]``, and the memory after them as a new array."""
        after = memory.copy()
        after[:, T] += 1.0
        t = memory[:, T].astype(np.int64)
        device = state.device
        known = torch.from_numpy(after).to(device)  # on the CPU this is the new memory itself
        cache = known[:, self._cache_at :].view(len(known), *self._cache_shape)
        x = self._tokens(state, known, torch.from_numpy(t).to(device))
        x = self._normed("embed.norm", x)
        places, bias = (torch.from_numpy(a).to(device) for a in (self._places(t), self._bias(t)))
        for i in range(self._layers):
            x = self._block(f"block{i}", x, cache[:, i], places, bias)
        outputs = linear(self._normed("norm", x[:, NEW.index(STATE)]), *self._dense["head"])
        if known.device.type != "cpu":
            after = known.cpu().numpy()
        return outputs, after

    def note_action(self, memory: Array, action: Array) -> None:
        """Keep the actions that were chosen: they become tokens at the next step."""
        memory[:, LAST_ACTION : self._cache_at] = action

    def note_reward(self, memory: Array, reward: Array) -> Array:
        """Return the memory with less return to go."""
        after = memory.copy()
        after[:, GATHERED] += reward
        return after

    def _tokens(self, state: Tensor, memory: Tensor, t: Tensor) -> Tensor:
        """Return the embedded tokens ``[B, 3, width]``, in the order of ``NEW``."""
        scale, target = self._return_norm
        inputs = {
            ACTION: memory[:, LAST_ACTION : self._cache_at],
            RETURN: ((target - memory[:, GATHERED]) / scale).unsqueeze(1),
            STATE: state,
        }
        last = len(self._time) - 1
        times = {kind: self._time[(t - int(kind == ACTION)).clamp(0, last)] for kind in NEW}
        layers = {kind: self._dense[f"embed.{TOKENS[kind]}"] for kind in NEW}
        return torch.stack([linear(inputs[kind], *layers[kind]) + times[kind] for kind in NEW], dim=1)

    def _block(self, name: str, x: Tensor, cache: Tensor, places: Tensor, bias: Tensor) -> Tensor:
        """Return the new tokens after one block; keys and values are written to ``cache [B, 2, places, width]``."""
        query, key, value, mix, expand, contract = (
            self._dense[f"{name}.{layer}"] for layer in ("query", "key", "value", "mix", "expand", "contract")
        )
        h = self._normed(f"{name}.norm1", x)
        key_value = torch.stack((linear(h, *key), linear(h, *value)), dim=1)
        cache.scatter_(2, places.view(len(x), 1, -1, 1).expand_as(key_value), key_value)
        q, k, v = (self._by_head(tokens) for tokens in (linear(h, *query), cache[:, 0], cache[:, 1]))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3]) + bias.unsqueeze(1)
        x = x + linear((scores.softmax(3) @ v).transpose(1, 2).flatten(2), *mix)
        return x + linear(linear(self._normed(f"{name}.norm2", x), *expand).relu_(), *contract)

    def _normed(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], *self._norms[name], NORM_EPS)

    def _by_head(self, tokens: Tensor) -> Tensor:
        """Turn ``[B, tokens, width]`` into ``[B, heads, tokens, size]``."""
        return tokens.view(*tokens.shape[:2], self._heads, -1).transpose(1, 2)

    def _places(self, t: Array) -> Array:
        """Return where in the ring the new tokens go, ``[B, 3]``."""
        step_of = {ACTION: t - 1, RETURN: t, STATE: t}
        return np.stack([step_of[kind] % self._steps * len(TOKENS) + kind for kind in NEW], axis=1)

    def _bias(self, t: Array) -> Array:
        """Return what hides from each new token what it must not see, ``[B, 3, places]``."""
        place = np.arange(self._steps * len(TOKENS))
        slot, kind = np.divmod(place, len(TOKENS))
        age = (t[:, None] - slot) % self._steps  # of the step that lies in a slot, or would if it had been
        exists = age <= t[:, None]
        # whatever belongs to this step was not there when the last action was taken; of it the state sees the return
        seen = {ACTION: age > 0, RETURN: (age > 0) | (kind == RETURN), STATE: (age > 0) | (kind != ACTION)}
        allowed = np.stack([seen[new] & exists for new in NEW], axis=1)
        return np.where(allowed, 0.0, UNSEEN).astype(np.float32)
