"""The policy head for any mix of choices and continuous actions.

A row of parameters is ``[logits of each choice | means | log deviations]``. Choices are categorical, continuous actions
Gaussian in units in which the environment's bounds are [-1, 1]; nothing is clipped here, since the environment does it.
A mask says which choices are possible: the others have probability zero, in acting and in learning alike.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from roboloop.core.types import Array

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
IMPOSSIBLE = -1e9
"""Logit of a masked choice: its probability is exactly zero, and zero times its logarithm is still zero."""
_LEAST_LOT = 1e-30
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Density(NamedTuple):
    """What parameters say about given actions, ``[N]`` each."""

    log_prob: Tensor
    entropy: Tensor
    uniform_kl: Tensor  # mean of KL(pi || uniform) and KL(uniform || pi), over choices only


class ActionPart(Protocol):
    """One kind of actions: a stretch of the parameters, and some columns of the action."""

    num_params: int
    num_noise: int
    columns: list[int]

    def noise(self, rng: np.random.Generator, rows: int) -> Array:
        """Draw what ``sample`` needs, ``[rows, num_noise]`` float32."""
        ...

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Return the actions ``[N, columns]`` that the noise picks."""
        ...

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the likeliest actions ``[N, columns]``."""
        ...

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return the log-probability ``[N]`` of actions alone."""
        ...

    def density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Density:
        """Return log-probability, entropy and divergence from uniform."""
        ...


class Choices:
    """Independent categorical choices among ``sizes``."""

    def __init__(self, sizes: list[int], columns: list[int]) -> None:
        self.columns, self.num_params, self.num_noise = columns, sum(sizes), sum(sizes)
        ends = np.cumsum([0, *sizes]).tolist()
        self._slices = [slice(begin, end) for begin, end in pairwise(ends)]
        self._starts = torch.tensor(ends[:-1], dtype=torch.int64)
        self._uniform = torch.cat([torch.full((1, n), 1.0 / n) for n in sizes], dim=1)

    def noise(self, rng: np.random.Generator, rows: int) -> Array:
        """Draw one standard exponential lot per choice."""
        return rng.standard_exponential((rows, self.num_noise), dtype=np.float32)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Let exponential clocks race: the argmax of log p - log lot falls on each choice with its probability."""
        return self._largest(_possible(params, mask) - noise.clamp_min(_LEAST_LOT).log())

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the likeliest choices."""
        return self._largest(_possible(params, mask))

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum of the chosen logarithms."""
        return self._log_p(params, mask).gather(1, self.chosen(action)).sum(1)

    def density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Density:
        """Return log-probability, entropy and divergence from uniform over what is possible."""
        log_p, uniform = self._log_p(params, mask), self._uniform_of(params, mask)
        entropy = -(log_p.exp() * log_p).sum(1)
        # KL(pi || u) = sum p log p - sum u log u, since u is the same for all that is possible; KL(u || pi) likewise
        gap = (uniform * log_p).sum(1)
        return Density(log_p.gather(1, self.chosen(action)).sum(1), entropy, -0.5 * (entropy + gap))

    def _log_p(self, params: Tensor, mask: Tensor | None) -> Tensor:
        logits = _possible(params, mask)
        if len(self._slices) == 1:
            return logits.log_softmax(1)
        return torch.cat([logits[:, part].log_softmax(1) for part in self._slices], dim=1)

    def _uniform_of(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the uniform distribution over the possible choices."""
        if mask is None:
            return self._uniform.to(params)
        possible = mask.to(params.dtype)
        parts = [possible[:, part] for part in self._slices]
        return torch.cat([part / part.sum(1, keepdim=True).clamp_min(1.0) for part in parts], dim=1)

    def _largest(self, scores: Tensor) -> Tensor:
        return torch.stack([scores[:, part].argmax(1) for part in self._slices], dim=1).to(scores.dtype)

    def chosen(self, action: Tensor) -> Tensor:
        """Return where among the logits each row's choices lie."""
        return action.to(torch.int64) + self._starts.to(action.device)


class Gaussian:
    """Independent normal numbers, given by means and log deviations."""

    def __init__(self, columns: list[int]) -> None:
        self.columns, self.num_params, self.num_noise = columns, 2 * len(columns), len(columns)

    def noise(self, rng: np.random.Generator, rows: int) -> Array:
        """Draw one standard normal number per action."""
        return rng.standard_normal((rows, self.num_noise), dtype=np.float32)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Return mean + std * noise."""
        mean, log_std = _mean_log_std(params)
        return torch.addcmul(mean, log_std.exp(), noise)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the means."""
        return params.chunk(2, dim=1)[0]

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return -z^2 / 2 - log std - log(2 pi) / 2, summed."""
        mean, log_std = _mean_log_std(params)
        return _log_normal((action - mean) / log_std.exp(), log_std)

    def density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Density:
        """Return log-probability and entropy; no divergence."""
        mean, log_std = _mean_log_std(params)
        entropy = log_std.sum(1) + log_std.shape[1] * (0.5 + _HALF_LOG_2PI)
        return Density(_log_normal((action - mean) / log_std.exp(), log_std), entropy, torch.zeros_like(entropy))


class ActionHead:
    """The distribution over actions with columns of ``choices`` (0 = continuous): independent parts side by side."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        chosen = [column for column, n in enumerate(choices) if n]
        continuous = [column for column, n in enumerate(choices) if not n]
        self.num_logits, self.num_continuous = sum(choices), len(continuous)
        self._parts: list[ActionPart] = []
        if chosen:
            self._parts.append(Choices([choices[column] for column in chosen], chosen))
        if continuous:
            self._parts.append(Gaussian(continuous))
        # from the parts' order of columns to the environment's
        self._order = torch.from_numpy(np.argsort([*chosen, *continuous]))
        self._columns = [torch.tensor(part.columns) for part in self._parts]
        self.num_params = sum(part.num_params for part in self._parts)

    def noise(self, rng: np.random.Generator, rows: int) -> Array:
        """Draw what ``sample`` needs: standard exponential numbers for choices, normal ones for the others."""
        drawn = [part.noise(rng, rows) for part in self._parts]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=1)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Return the actions ``[N, columns]`` that the noise picks: a pure function."""
        noises = self._split(noise, [part.num_noise for part in self._parts])
        found = [part.sample(p, n, mask) for part, p, n in zip(self._parts, self._params(params), noises, strict=True)]
        return self._together(found)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the likeliest actions ``[N, columns]``."""
        return self._together([part.mode(p, mask) for part, p in zip(self._parts, self._params(params), strict=True)])

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return the log-probability ``[N]`` of actions alone."""
        found = [part.log_prob(p, a, mask) for part, p, a in self._each(params, action)]
        return found[0] if len(found) == 1 else found[0] + found[1]

    def density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Density:
        """Return the log-probability of actions ``[N, columns]``, entropy and divergence from uniform choices."""
        found = [part.density(p, a, mask) for part, p, a in self._each(params, action)]
        if len(found) == 1:
            return found[0]
        a, b = found
        return Density(a.log_prob + b.log_prob, a.entropy + b.entropy, a.uniform_kl + b.uniform_kl)

    def _each(self, params: Tensor, action: Tensor) -> list[tuple[ActionPart, Tensor, Tensor]]:
        if len(self._parts) == 1:
            return [(self._parts[0], params, action)]
        columns = [action.index_select(1, each.to(action.device)) for each in self._columns]
        return list(zip(self._parts, self._params(params), columns, strict=True))

    def _params(self, params: Tensor) -> list[Tensor]:
        return self._split(params, [part.num_params for part in self._parts])

    def _split(self, columns: Tensor, sizes: list[int]) -> list[Tensor]:
        return [columns] if len(sizes) == 1 else list(torch.split(columns, sizes, dim=1))

    def _together(self, found: list[Tensor]) -> Tensor:
        return found[0] if len(found) == 1 else torch.cat(found, dim=1).index_select(1, self._order.to(found[0].device))


def _possible(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else torch.where(mask, logits, IMPOSSIBLE)


def _mean_log_std(params: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = params.chunk(2, dim=1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def _log_normal(z: Tensor, log_std: Tensor) -> Tensor:
    return torch.addcmul(log_std, z, z, value=0.5).sum(1).neg() - z.shape[1] * _HALF_LOG_2PI
