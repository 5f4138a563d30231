"""Slots: disjoint sets of CPUs, and a GPU where there is one, that runs are started in.

What there is to share is discovered, never declared by hand: a mask that a machine does not have cannot be asked for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from roboloop.core.errors import ConfigError
from roboloop.core.parts import split_evenly
from roboloop.core.resources import ROOT, free_memory_bytes, quota_cores

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ASK_S = 20.0


@dataclass(frozen=True)
class Machine:
    """What this process may use."""

    cores: tuple[tuple[int, ...], ...]
    """The CPUs of each core: two where a core runs two threads and both are ours. Cores of one socket lie together."""
    quota_cores: float
    """Cores' worth of time that the container may take."""
    memory_bytes: int
    gpus: tuple[str, ...]

    @property
    def num_cores(self) -> int:
        """Whole cores that can be busy at once."""
        return max(1, int(min(len(self.cores), self.quota_cores)))


@dataclass(frozen=True)
class Slot:
    """Where one run at a time may run."""

    index: int
    cpus: tuple[int, ...]
    num_cores: int
    gpu: str | None = None

    def variables(self) -> dict[str, str]:
        """Return the environment variables that keep a run within its slot."""
        variables = dict.fromkeys(_THREADS, str(self.num_cores))
        if self.gpu is not None:
            if _VISIBLE not in os.environ:  # number GPUs as nvidia-smi does, not by speed
                variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            variables[_VISIBLE] = self.gpu
            if self.gpu.isdecimal():
                variables["MUJOCO_EGL_DEVICE_ID"] = self.gpu
        return variables

    def __str__(self) -> str:
        if not self.cpus:
            return f"slot {self.index}"  # somewhere in a cluster
        gpu = "" if self.gpu is None else f", GPU {self.gpu}"
        return f"slot {self.index} (CPU {_ranges(self.cpus)}{gpu})"


def discover(
    root: Path = ROOT, allowed: Collection[int] | None = None, variables: Mapping[str, str] = os.environ
) -> Machine:
    """Return what the affinity mask, the container and the drivers leave to this process."""
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _cpu_list(_read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")) or [cpu]
        socket = _read(topology / "physical_package_id")
        cores.setdefault((int(socket) if socket.isdecimal() else 0, min(siblings)), []).append(cpu)
    together = tuple(tuple(cores[key]) for key in sorted(cores))
    return Machine(together, quota_cores(root), free_memory_bytes(root), _gpus(variables))


def make_slots(
    machine: Machine,
    num_slots: int | None,
    cores_per_run: int | None,
    on_gpu: bool = False,
    num_runs: int | None = None,
) -> list[Slot]:
    """Share a machine: whole cores first, then threads of cores; more slots than CPUs share them.

    Without wishes every core is a slot; where there are fewer runs than cores, or GPUs that they learn on, these share
    the cores.
    """
    usable = machine.num_cores
    if any(wish is not None and wish < 1 for wish in (num_slots, cores_per_run)):
        raise ConfigError("--slots and --cores-per-run must be at least 1")
    if cores_per_run and (num_slots or 1) * cores_per_run > usable:
        wanted = f"{num_slots or 1} slots of {cores_per_run} cores"
        raise ConfigError(f"{wanted} are more than the {usable} cores that may be used here")
    if num_slots is None:
        num_slots = usable // (cores_per_run or 1)
        num_slots = min(num_slots, len(machine.gpus)) if on_gpu and machine.gpus else num_slots
        num_slots = min(num_slots, num_runs or num_slots)
    cpu_sets = _share(machine.cores[:usable], num_slots, cores_per_run)
    core_of = {cpu: number for number, core in enumerate(machine.cores) for cpu in core}
    gpus = machine.gpus
    return [
        Slot(index, cpus, len({core_of[cpu] for cpu in cpus}), gpus[index % len(gpus)] if gpus else None)
        for index, cpus in enumerate(cpu_sets)
    ]


def describe(machine: Machine, slots: Collection[Slot]) -> str:
    """Return the slots in one line."""
    cpus = sorted(cpu for core in machine.cores for cpu in core)
    has = f"{len(machine.cores)} cores ({len(cpus)} CPUs), {machine.memory_bytes / 1e9:.0f} GB free"
    if machine.quota_cores < len(machine.cores):
        has += f", a quota of {machine.quota_cores:g} cores"
    if machine.gpus:
        has += f", {len(machine.gpus)} GPUs"
    shared = sum(len(slot.cpus) for slot in slots) > len({cpu for slot in slots for cpu in slot.cpus})
    sets = " | ".join(_ranges(slot.cpus) for slot in slots)
    return (
        f"{has}; {len(slots)} slot{'s' if len(slots) > 1 else ''}, CPU {sets}{'; slots share CPUs' if shared else ''}"
    )


@contextlib.contextmanager
def pinned(cpus: Collection[int], warn: Callable[[str], None]) -> Iterator[None]:
    """Let what is started meanwhile inherit a set of CPUs; where that cannot be set, a line says so."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        warn(f"warning: runs cannot be kept to CPU {_ranges(cpus)} ({error.strerror}): they run on any")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _share(cores: tuple[tuple[int, ...], ...], num_slots: int, cores_per_run: int | None) -> list[tuple[int, ...]]:
    if cores_per_run:
        return [_flat(cores[i * cores_per_run : (i + 1) * cores_per_run]) for i in range(num_slots)]
    if num_slots <= len(cores):
        return [_flat(cores[part.start : part.stop]) for part in split_evenly(len(cores), num_slots)]
    cpus = tuple((cpu,) for core in cores for cpu in core)
    if num_slots <= len(cpus):
        return [_flat(cpus[part.start : part.stop]) for part in split_evenly(len(cpus), num_slots)]
    return [cpus[i % len(cpus)] for i in range(num_slots)]


def _flat(units: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(cpu for unit in units for cpu in unit)


def _cpu_list(text: str) -> list[int]:
    """Read '0-2,8' as the kernel writes it."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _ranges(cpus: Collection[int]) -> str:
    """Write CPUs as '0-2,8'."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _gpus(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs as the driver numbers them, or those that the user has left visible."""
    if _VISIBLE in variables:
        named = [name.strip() for name in variables[_VISIBLE].split(",")]
        return tuple(name for name in named if name and name != "-1")
    ask = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_ASK_S, check=False, env=dict(variables))
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
