"""Runs the shards of an update on several processes over shared memory; one process gives the same bits."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from roboloop.algos.shared import Control, floats_of, num_bytes
from roboloop.core.child import Child
from roboloop.core.memory import SharedMemory
from roboloop.nets.flat import aligned

TIMEOUT_S = 60.0
"""Longest wait for a helper's part of one phase."""
SPIN_S = 0.02
"""Wait this long for a helper at full attention, then in short sleeps."""


class Shard(Protocol):
    """One part of the work: phases that read and write only shared memory and the shard's own scratch."""

    PHASES: ClassVar[tuple[str, ...]]
    """All that it can be told to run."""

    def run(self, phase: str) -> None:
        """Do this shard's part of a phase."""
        ...


class Work(Protocol):
    """What is to be computed: known to every process as plain data, so that it can travel as JSON."""

    def to_data(self) -> dict[str, Any]:
        """Return what ``from_data`` of the same class accepts."""
        ...

    def make_shard(self, memory: torch.Tensor, index: int) -> Shard:
        """Build one shard over the shared memory."""
        ...


class HelperDied(RuntimeError):
    """A helper process ended or hung in the middle of training."""


class ShardPool:
    """Shard i runs in process i modulo the number of processes; a phase ends when all shards have run it."""

    def __init__(self, work: Work, num_floats: int, shards: int, processes: int, device: str) -> None:
        # one thread always: with more, BLAS may sum in another order and the bits would depend on the resources
        torch.set_num_threads(1)
        self._processes = usable_processes(processes, shards, device)
        self._shared = SharedMemory.create(num_bytes(num_floats))
        self.memory = floats_of(self._shared) if device == "cpu" else torch.zeros(num_floats, device=device)
        self._control = Control(self._shared)
        self._shards = [work.make_shard(self.memory, i) for i in range(shards)]
        self._phases = type(self._shards[0]).PHASES
        kind = f"{type(work).__module__}:{type(work).__qualname__}"
        self._job = {"kind": kind, "work": work.to_data(), "shards": shards, "processes": self._processes}
        self._helpers: list[Child] = []
        self._started = False
        self._word = 0

    def run(self, phases: Sequence[str]) -> None:
        """Run some of the shards' PHASES in order, each on all shards before the next begins."""
        if not self._started:
            self._start()
        # until the helpers have imported torch, this process does their shards too: same bits, no waiting
        helpers = self._helpers if self._all_ready() else []
        own = self._shards[:: self._processes] if helpers else self._shards
        torch.set_flush_denormal(True)  # Adam moments of dead units decay into denormals, which are slow
        try:
            for phase in phases:
                if helpers:
                    self._post(self._phases.index(phase), helpers)
                for shard in own:
                    shard.run(phase)
                for number, helper in enumerate(helpers):
                    self._wait(number, helper, phase)
        finally:
            torch.set_flush_denormal(False)  # simulators in this process must not see it

    def wait_until_ready(self) -> None:
        """Start the helpers and wait for them; for benchmarks and tests, training need not wait."""
        if not self._started:
            self._start()
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._helpers and not self._all_ready():
            if time.monotonic() > deadline_s:
                raise HelperDied(f"update helpers did not start within {TIMEOUT_S:.0f} s")
            time.sleep(0.01)

    @property
    def helper_pids(self) -> list[int]:
        """Process ids of the helpers that work now."""
        return [helper.pid for helper in self._helpers]

    def close(self) -> None:
        """Stop the helpers; later updates run in this process alone."""
        self._started = True
        stop(self._helpers)
        self._helpers.clear()

    def _start(self) -> None:
        self._started = True
        for number in range(self._processes - 1):
            helper = Child(f"update helper {number + 1}", "roboloop.algos.shard_helper:main", [self._shared.fd])
            helper.channel.send({**self._job, "number": number, "num_bytes": self._shared.num_bytes})
            self._helpers.append(helper)
        weakref.finalize(self, stop, self._helpers)

    def _all_ready(self) -> bool:
        if not self._helpers:
            return False
        if all(self._control.is_ready(number) for number in range(len(self._helpers))):
            return True
        for helper in self._helpers:
            self._check_alive(helper, "start")
        return False

    def _post(self, phase_index: int, helpers: list[Child]) -> None:
        self._word = self._control.next_word(self._word, phase_index)
        self._control.post(self._word)
        for number, helper in enumerate(helpers):
            if self._control.is_parked(number):
                with contextlib.suppress(OSError):  # it is dead: noticed while waiting for it
                    helper.channel.send("wake up")

    def _wait(self, number: int, helper: Child, phase: str) -> None:
        is_done, word = self._control.is_done, self._word
        start_s = time.monotonic()
        spins = 0
        while not is_done(number, word):
            os.sched_yield()
            spins += 1
            if spins % 256 == 0:
                waited_s = time.monotonic() - start_s
                if waited_s > SPIN_S:
                    time.sleep(2e-4)
                    self._check_alive(helper, phase)
                if waited_s > TIMEOUT_S:
                    raise HelperDied(
                        f"{helper.name} (pid {helper.pid}) did not finish {phase!r} within {TIMEOUT_S:.0f} s"
                    )

    @staticmethod
    def _check_alive(helper: Child, when: str) -> None:
        if not helper.is_alive():
            raise HelperDied(f"{helper.name} (pid {helper.pid}) {helper.how_it_ended()}\nduring {when!r}")


def usable_processes(wanted: int, shards: int, device: str) -> int:
    """Return how many processes may run: one per core and shard; one where the hand-over would not be safe."""
    if device != "cpu" or sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return 1  # the counters rely on x86's ordered stores, the memory on Linux's memfd
    return max(1, min(wanted, shards, len(os.sched_getaffinity(0))))


def stop(helpers: list[Child]) -> None:
    """End all helpers."""
    for helper in helpers:
        helper.channel.close()
    for helper in helpers:
        helper.stop()


def stretch(size: int, parts: int, index: int) -> slice:
    """Return one of ``parts`` contiguous stretches, each starting on a cache line."""
    length = aligned(-(-size // parts))
    return slice(min(index * length, size), min((index + 1) * length, size))


def sum_in_order(grads: list[Tensor]) -> Tensor:
    """Add all to the first, in place and in order, so that the sum does not depend on who computed them."""
    total = grads[0]
    for grad in grads[1:]:
        total.add_(grad)
    return total
