"""Bounds of config values that all algorithms share."""

from __future__ import annotations

from typing import Any

from roboloop.core.errors import ConfigError, nearest

MOST_LAYERS, MOST_UNITS = 1_000, 10**6


def at_least_one(config: Any, *names: str) -> None:
    """Refuse counts below one."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(config, name)}")


def at_most(config: Any, **limits: int) -> None:
    """Refuse counts beyond all use: what takes so long or so much memory that it looks like a hang."""
    for name, most in limits.items():
        if getattr(config, name) > most:
            raise ConfigError(f"{name} must be at most {most}, not {getattr(config, name)}")


def above_zero(config: Any, *names: str) -> None:
    """Refuse what is zero, negative or not a number."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} must be above 0, not {getattr(config, name)}")


def not_negative(config: Any, *names: str) -> None:
    """Refuse what is negative or not a number."""
    for name in names:
        if not getattr(config, name) >= 0:
            raise ConfigError(f"{name} must not be negative, not {getattr(config, name)}")


def within_one(config: Any, *names: str) -> None:
    """Refuse fractions outside [0, 1]."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{name} must lie in [0, 1], not {getattr(config, name)}")


def has_layers(config: Any, name: str) -> None:
    """Refuse no layers, and layers without units."""
    sizes = getattr(config, name)
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{name} needs at least one layer of at least one unit, not {sizes}")
    if len(sizes) > MOST_LAYERS or max(sizes) > MOST_UNITS:
        raise ConfigError(
            f"{name} may have {MOST_LAYERS} layers of {MOST_UNITS} units, not {len(sizes)} of {max(sizes)}"
        )


NETS = ("mlp", "residual")
"""Networks of ours by name."""


def check_net(name: str) -> None:
    """Refuse what is neither a network of ours nor of the form module:attr."""
    if ":" not in name and name not in NETS:
        raise ConfigError(f"unknown network {name!r}{nearest(name, NETS)} (known: {', '.join(NETS)}, or module:attr)")


def check_task_rows(config: Any, num_tasks: int) -> None:
    """Refuse batches that do not fall into as many rows of each task in every shard."""
    if config.batch_size % (num_tasks * config.shards):
        parts = f"{num_tasks} tasks x {config.shards} shards"
        raise ConfigError(f"batch_size {config.batch_size} does not split into {parts} of equal size")


def check_convs(config: Any) -> None:
    """Refuse convolutions that are not equally many everywhere."""
    for name in ("conv_channels", "conv_kernels", "conv_strides"):
        has_layers(config, name)
    if not len(config.conv_channels) == len(config.conv_kernels) == len(config.conv_strides):
        raise ConfigError("conv_channels, conv_kernels and conv_strides must be equally long")
