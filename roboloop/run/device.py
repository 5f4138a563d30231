"""Devices beside the CPU: whether there is one, how much memory it has, and how much of it a run takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from roboloop.core.errors import ConfigError

CPU = "cpu"


class DeviceMemory(NamedTuple):
    """What a device has, in bytes."""

    free: int
    total: int


def check_device(name: str) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    if name == CPU:
        return
    import torch

    try:
        torch.device(name)
    except RuntimeError:
        raise ConfigError(f"config key 'device' must be cpu, cuda or another device of torch, not {name!r}") from None
    try:
        torch.zeros(1, device=name).cpu().numpy()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise ConfigError(f"config key 'device' must be one that is here, not {name!r}: {reason}") from None


def devices() -> list[str]:
    """Return the devices beside the CPU that torch can use."""
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return [f"{kind.type}:{i}" for i in range(torch.accelerator.device_count())]


def memory_of(name: str) -> DeviceMemory | None:
    """Return the memory of a device; None where torch does not know it."""
    found = _ask(name, "mem_get_info")
    return None if found is None else DeviceMemory(*found)


def describe(name: str) -> str:
    """Return a device with its model and its memory, in words."""
    model, memory = _ask(name, "get_device_name"), memory_of(name)
    known = [model] if model else []
    if memory:
        known.append(f"{memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB free")
    return f"{name} ({', '.join(known)})" if known else name


def memory_taken(name: str) -> dict[str, float]:
    """Return the memory that this process takes of a device, now and at most; nothing where torch does not know it."""
    now, most = _ask(name, "memory_allocated"), _ask(name, "max_memory_allocated")
    return {} if now is None or most is None else {"device_memory_mb": now / 1e6, "device_memory_max_mb": most / 1e6}


def _ask(name: str, what: str) -> Any:
    """Return what torch's module of a device says of it; None where it has no such function."""
    if name == CPU:
        return None
    import torch

    function = getattr(torch.get_device_module(name), what, None)
    return None if function is None else function(torch.device(name))
