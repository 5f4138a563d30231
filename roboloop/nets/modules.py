"""Networks as ordinary modules, for losses in plain PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from roboloop.core.resolve import load_named

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of the logarithm of a tanh-Gaussian's deviation."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "silu": nn.SiLU}


class BatchNorm(nn.Module):
    """Batch normalisation (arXiv:1502.03167) that shards can share: each normalises by its own rows.

    While training it writes what it saw to ``seen``; the step that moves the module then moves ``running`` by the mean
    over all shards. While evaluating it normalises by ``running``.
    """

    running: Tensor
    seen: Tensor

    def __init__(self, width: int, momentum: float = 0.01, eps: float = 1e-3) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.gain, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running", torch.stack((torch.zeros(width), torch.ones(width))))
        self.register_buffer("seen", torch.zeros(2, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised rows."""
        if self.training:
            var, mean = torch.var_mean(x, 0, correction=0)
            with torch.no_grad():
                self.seen.copy_(torch.stack((mean, var)))
        else:
            mean, var = self.running
        return (x - mean) * (self.gain * (var + self.eps).rsqrt()) + self.bias


NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": BatchNorm}


def mlp(widths: Sequence[int], activation: str = "relu", norm: str | None = None) -> nn.Sequential:
    """Return linear layers, with norm and activation between them; 'batch' also normalises the input."""
    layers: list[nn.Module] = [BatchNorm(widths[0])] if norm == "batch" else []
    for inputs, outputs in itertools.pairwise(widths):
        layers.append(nn.Linear(inputs, outputs))
        if norm is not None:
            layers.append(NORMS[norm](outputs))
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers[: -1 if norm is None else -2])


class Residual(nn.Module):
    """A block of SimBa (arXiv:2410.09754): the input, and a network on its normalised rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        y: Tensor = self.net(x)
        return x + y


def residual(widths: Sequence[int]) -> nn.Sequential:
    """Return a layer to the first hidden width, a block for each hidden layer, and a layer to the outputs."""
    inputs, width, *_, outputs = widths
    blocks = [Residual(width) for _ in widths[1:-1]]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.Linear(width, outputs))


def make_net(cfg: Any, inputs: int, outputs: int) -> nn.Module:
    """Return the network that a config names: ``net``, of the widths ``hidden``."""
    widths = [inputs, *cfg.hidden, outputs]
    return own_net(cfg, inputs, outputs) or mlp(widths, norm="layer" if cfg.layer_norm else None)


def own_net(cfg: Any, inputs: int, outputs: int) -> nn.Module | None:
    """Return the network that a config names where it is no plain one."""
    if ":" in cfg.net:
        module: nn.Module = load_named(cfg.net, "algo.net")(inputs, outputs, cfg)
        return module
    return residual([inputs, *cfg.hidden, outputs]) if cfg.net == "residual" else None


class Ensemble(nn.ModuleList):
    """Networks of the same shape on the same inputs; outputs are ``[E, rows, ...]``."""

    def __init__(self, make: Callable[[], nn.Module], size: int) -> None:
        super().__init__(make() for _ in range(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return every member's outputs."""
        return torch.stack([member(x) for member in self])


def tanh_gaussian(outputs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return actions tanh(u), u ~ N(mean, std), and the logarithm of their density (appendix C of arXiv:1812.05905).

    ``outputs`` are means and log deviations ``[N, 2A]``, ``noise`` is standard normal; None gives tanh(mean).
    """
    mean, log_std = outputs.chunk(2, 1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    if noise is None:
        noise = torch.zeros_like(mean)
    u = mean + log_std.exp() * noise
    # eq. 21 with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which neither overflows nor cancels
    density = 2.0 * (u + softplus(-2.0 * u)) - log_std - 0.5 * noise.square()
    constant = outputs.shape[1] // 2 * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi))
    return u.tanh(), density.sum(1) - constant
