"""A small Gaussian policy as plain numpy, read from one file: it acts inside environments, where no torch is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from roboloop.core.errors import DataError
from roboloop.core.files import parse_json, read_bytes
from roboloop.core.types import Array

KIND, FORMAT, HEADER = "roboloop-frozen-policy", 1, "roboloop"
ACTIVATIONS = ("tanh", "relu", "elu")
SUFFIX = ".safetensors"
_CACHE_LINE = 64
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Layers:
    """All numbers of a policy; float32. Actions are means where their bounds are [-1, 1]."""

    weights: tuple[Array, ...]  # [in, out] each
    biases: tuple[Array, ...]
    activation: str
    """Between layers, not after the last."""
    action_low: Array
    action_high: Array
    log_std: Array
    """``[A]``; empty where the last layer says it behind the means."""
    obs_norm: Array
    """Shift and scale, ``[2, D]``; D is 0 where observations are taken as they are."""
    obs_clip: float = 10.0
    """Scaled observations are cut here."""
    log_std_range: tuple[float, float] = (-20.0, 2.0)
    """Log deviations of the last layer are cut here."""

    @property
    def obs_dim(self) -> int:
        """Numbers of an observation."""
        return int(self.weights[0].shape[0])

    @property
    def action_dim(self) -> int:
        """Numbers of an action."""
        return len(self.action_low)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return tuple(len(bias) for bias in self.biases[:-1])

    def fault(self) -> str:
        """Return what is wrong with the shapes; empty if nothing is."""
        outputs = self.action_dim * (1 if self.log_std.size else 2)
        if not self.weights or len(self.weights) != len(self.biases):
            return "its layers are not whole"
        widths = [self.obs_dim, *(len(bias) for bias in self.biases)]
        for i, weight in enumerate(self.weights):
            if weight.shape != (widths[i], widths[i + 1]):
                return f"layer {i} has shape {weight.shape}, not {(widths[i], widths[i + 1])}"
        if widths[-1] != outputs or len(self.action_high) != self.action_dim:
            return f"its last layer has {widths[-1]} outputs for {self.action_dim} actions"
        if self.log_std.size not in (0, self.action_dim) or self.obs_norm.shape not in ((2, 0), (2, self.obs_dim)):
            return "its deviations or its scale of observations have another size"
        if self.activation not in ACTIVATIONS:
            return f"its activation {self.activation!r} is none of {', '.join(ACTIVATIONS)}"
        return ""


class FrozenPolicy:
    """Acts for one observation in microseconds, or for many; it never changes and draws from whom it is given."""

    def __init__(self, layers: Layers, about: Mapping[str, Any] | None = None) -> None:
        self.layers, self.about = layers, dict(about or {})
        self._weights = [_aligned(weight) for weight in layers.weights]
        self._biases = [_aligned(bias) for bias in layers.biases]
        self._shift, self._scale = layers.obs_norm
        self._std = np.exp(layers.log_std)
        low, high = layers.action_low.astype(np.float64), layers.action_high.astype(np.float64)
        self._low, self._high = layers.action_low, layers.action_high
        self._center, self._half = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
        # what is in between lies in memory of our own, always at the same alignment: BLAS may round otherwise else
        self._input = _aligned(np.zeros(layers.obs_dim, np.float32))
        self._between = [_aligned(np.zeros(len(bias), np.float32)) for bias in layers.biases]

    def act(self, obs: Array, rng: np.random.Generator, explore: bool = True) -> Array:
        """Return the action ``[A]`` for one observation ``[D]``, within bounds; not exploring takes the mean."""
        x = self._input
        x[:] = obs
        if self._shift.size:
            self._scaled(x)
        for i, (weight, bias, y) in enumerate(zip(self._weights, self._biases, self._between, strict=True)):
            np.dot(x, weight, out=y)
            y += bias
            x = y if i == len(self._weights) - 1 else _activated(y, self.layers.activation)
        mean, std = self._split(x)
        unit = mean + std * rng.standard_normal(len(mean), dtype=np.float32) if explore else mean
        return self._to_env(unit)

    def act_many(self, obs: Array, rng: np.random.Generator, explore: bool = True) -> Array:
        """Return actions ``[N, A]`` for observations ``[N, D]``; one by one the last digits may differ."""
        mean, std = self.mean_and_std(obs)
        unit = mean + std * rng.standard_normal(mean.shape, dtype=np.float32) if explore else mean
        return self._to_env(unit)

    def mean_and_std(self, obs: Array) -> tuple[Array, Array]:
        """Return means and deviations ``[N, A]`` for observations ``[N, D]``, where the bounds are [-1, 1]."""
        x = _aligned(np.asarray(obs, np.float32))
        if self._shift.size:
            self._scaled(x)
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = x @ weight + bias
            x = x if i == len(self._weights) - 1 else _activated(x, self.layers.activation)
        mean, std = self._split(x)
        return mean, np.broadcast_to(std, mean.shape)

    def to_unit(self, action: Array) -> Array:
        """Return actions in units in which their bounds are [-1, 1]."""
        unit: Array = (action - self._center) / self._half
        return unit

    def _scaled(self, x: Array) -> None:
        """Shift and scale in place; one after another as training does it, so that the same digits come out."""
        x -= self._shift
        x *= self._scale
        np.maximum(x, -self.layers.obs_clip, out=x)
        np.minimum(x, self.layers.obs_clip, out=x)

    def _split(self, outputs: Array) -> tuple[Array, Array]:
        if self._std.size:
            return outputs, self._std
        dim, (low, high) = len(self._low), self.layers.log_std_range
        return outputs[..., :dim], np.exp(np.minimum(np.maximum(outputs[..., dim:], low), high))

    def _to_env(self, unit: Array) -> Array:
        action: Array = np.minimum(np.maximum(unit * self._half + self._center, self._low), self._high)
        return action

    def to_bytes(self) -> bytes:
        """Return the file."""
        tensors = _tensors(self.layers)
        header = {
            "kind": KIND, "format": FORMAT, "activation": self.layers.activation, "obs_clip": self.layers.obs_clip,
            "log_std_range": list(self.layers.log_std_range), "crc32": _checksum(tensors), "about": self.about,
        }  # fmt: skip
        return save_tensors(tensors, {HEADER: json.dumps(header)})

    @classmethod
    def load(cls, path: Path | str) -> FrozenPolicy:
        """Read a policy that ``roboloop export RUN --frozen`` wrote; what is none is one line."""
        path = Path(path)
        if not path.is_file():
            raise DataError(f"{path} is no file: roboloop export RUN --frozen {path.with_suffix(SUFFIX)} writes one")
        data = read_bytes(path, _MOST_BYTES, follow=True)
        try:
            tensors = load_tensors(data)
            header = parse_json(_metadata(data).get(HEADER, "{}").encode(), "its header")
        except (SafetensorError, DataError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged or no frozen policy: {error}") from None
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise DataError(f"{path} is no frozen policy: roboloop export RUN --frozen OUT{SUFFIX} writes one")
        if header.get("format") != FORMAT:
            raise DataError(f"{path} is a frozen policy of format {header.get('format')}, this is {FORMAT}")
        return cls(_layers(path, header, tensors), header.get("about"))


def _metadata(data: bytes) -> dict[str, Any]:
    """Return what a safetensors file says of itself: a length, and a JSON text of that length."""
    size = int.from_bytes(data[:8], "little")
    found = parse_json(data[8 : 8 + size], "its head").get("__metadata__", {})
    return dict(found)


def _tensors(layers: Layers) -> dict[str, Array]:
    tensors = {name: getattr(layers, name) for name in ("action_low", "action_high", "log_std", "obs_norm")}
    for i, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
        tensors |= {f"linear{i}.weight": weight, f"linear{i}.bias": bias}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}


def _layers(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Array]) -> Layers:
    def some(kind: str) -> tuple[Array, ...]:
        count = sum(name.endswith(f".{kind}") for name in tensors)
        return tuple(tensors[f"linear{i}.{kind}"] for i in range(count))

    try:
        if _checksum(tensors) != header["crc32"]:
            raise DataError(f"{path} is damaged: its numbers do not match their checksum")
        low, high = header["log_std_range"]
        layers = Layers(
            some("weight"), some("bias"), str(header["activation"]), tensors["action_low"], tensors["action_high"],
            tensors["log_std"], tensors["obs_norm"], float(header["obs_clip"]), (float(low), float(high)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error} is missing or wrong") from None
    if layers.fault():
        raise DataError(f"{path} is damaged: {layers.fault()}")
    return layers


def _checksum(tensors: Mapping[str, Array]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].tobytes(), zlib.crc32(name.encode(), total))
    return total


def _activated(x: Array, activation: str) -> Array:
    """Return x after an activation, in its place."""
    if activation == "tanh":
        return np.tanh(x, out=x)
    if activation == "relu":
        return np.maximum(x, 0.0, out=x)
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


def _aligned(values: Array) -> Array:
    """Return a float32 copy that begins on a cache line."""
    raw = np.empty(values.size * 4 + _CACHE_LINE, np.uint8)
    begin = -raw.ctypes.data % _CACHE_LINE
    out = raw[begin : begin + values.size * 4].view(np.float32).reshape(values.shape)
    out[...] = values
    return out


def load_all(paths: Sequence[str]) -> list[FrozenPolicy]:
    """Read several policies that take the same observations and give the same actions, such as an ensemble."""
    policies = [FrozenPolicy.load(path) for path in paths]
    for path, policy in zip(paths, policies, strict=True):
        first = policies[0].layers
        if (policy.layers.obs_dim, policy.layers.action_dim) != (first.obs_dim, first.action_dim):
            raise DataError(f"{path} does not see and do what {paths[0]} does")
    return policies
