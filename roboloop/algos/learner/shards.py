"""Runs the shards of an update on several processes over shared memory; one process gives the same bits."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from roboloop.algos.learner.shared import Control, floats_of, num_bytes, undo_area
from roboloop.algos.learner.undo import Undo
from roboloop.core.child import START_S, Child, innermost
from roboloop.core.errors import WorkerLost
from roboloop.core.memory import SharedMemory
from roboloop.nets.flat import aligned

TIMEOUT_S = 60.0
"""Longest wait for a helper's part of one phase."""
MOST_LOSSES = 10
"""Helpers that may be lost in a run before it ends."""
SPIN_S = 0.02
"""Wait this long for a helper at full attention, then in short sleeps."""


class Shard(Protocol):
    """One part of the work: phases that read and write only shared memory and the shard's own scratch."""

    @property
    def PHASES(self) -> tuple[str, ...]:  # noqa: N802
        """All that it can be told to run."""
        ...

    def run(self, phase: str) -> None:
        """Do this shard's part of a phase."""
        ...

    def changes(self, phase: str) -> list[Tensor]:
        """Return the flat shared tensors that a phase changes in place; all else that it writes, it writes anew."""
        ...

    def catch_up(self, phase: str) -> None:
        """Prepare for this phase and those after it in a process that has not run those before it."""
        ...


class Work(Protocol):
    """What is to be computed: known to every process as plain data, so that it can travel as JSON."""

    def to_data(self) -> dict[str, Any]:
        """Return what ``from_data`` of the same class accepts."""
        ...

    def make_shard(self, memory: torch.Tensor, index: int) -> Shard:
        """Build one shard over the shared memory."""
        ...


class HelperDied(WorkerLost):
    """A helper process ended or hung in the middle of training."""


class ShardPool:
    """Shard i runs in process i modulo the number of processes; a phase ends when all shards have run it.

    A helper that dies or hangs is replaced, and this process does its part meanwhile: with the same bits.
    """

    def __init__(self, work: Work, num_floats: int, shards: int, processes: int, device: str) -> None:
        # one thread always: with more, BLAS may sum in another order and the bits would depend on the resources
        torch.set_num_threads(1)
        self._processes = usable_processes(processes, shards, device)
        self._shared = SharedMemory.create(num_bytes(num_floats))
        self.memory = floats_of(self._shared) if device == "cpu" else torch.zeros(num_floats, device=device)
        self._control = Control(self._shared)
        self._shards = [work.make_shard(self.memory, i) for i in range(shards)]
        self._phases = self._shards[0].PHASES
        kind = f"{type(work).__module__}:{type(work).__qualname__}"
        self._job = {"kind": kind, "work": work.to_data(), "shards": shards, "processes": self._processes}
        self._prepare_undo()
        self._helpers: list[Child] = []
        self._begun_s: list[float] = []
        self._started = False
        self._word = 0
        self._losses = 0
        self._said: list[str] = []

    def _prepare_undo(self) -> None:
        """Make room for what helpers change in place; they copy it there before they begin."""
        helpers = self._processes - 1
        if not helpers:
            return
        changes = [{phase: shard.changes(phase) for phase in self._phases} for shard in self._shards]
        self._undo_memory = SharedMemory.create(4 * helpers * max(1, *map(Undo.size, changes)))
        areas = undo_area(self._undo_memory, helpers)
        self._undos = [Undo(each, areas[i % self._processes - 1]) for i, each in enumerate(changes)]

    def run(self, phases: Sequence[str]) -> None:
        """Run some of the shards' PHASES in order, each on all shards before the next begins."""
        if not self._started:
            self._start()
        # until the helpers have imported torch, this process does their shards too: same bits, no waiting
        working = dict(enumerate(self._helpers)) if self._all_ready() else {}
        own = self._shards[:: self._processes] if working else self._shards
        lost: dict[int, str] = {}
        torch.set_flush_denormal(True)  # Adam moments of dead units decay into denormals, which are slow
        try:
            for phase in phases:
                if working:
                    self._post(self._phases.index(phase), self._helpers)
                for shard in own:
                    shard.run(phase)
                for number, helper in list(working.items()):
                    try:
                        self._wait(number, helper, phase)
                    except HelperDied as death:
                        lost[number] = str(death)
                        own = own + self._take_over(number, working.pop(number), phase)
        finally:
            torch.set_flush_denormal(False)  # simulators in this process must not see it
        for number, why in lost.items():  # not before: a new one must not see half of an update
            self._replace(number, why)

    def _take_over(self, number: int, helper: Child, phase: str) -> list[Shard]:
        """Do a lost helper's part of a phase; return its shards, which this process runs from now on."""
        helper.kill()  # one that hangs must not wake up again
        if helper.is_alive():
            raise HelperDied(f"{helper.name} (pid {helper.pid}) cannot be killed: it hangs in the kernel")
        marks = self._control.marks(number, self._word)
        indices = range(number + 1, len(self._shards), self._processes)
        for i, index in enumerate(indices):
            shard, undo = self._shards[index], self._undos[index]
            if marks == 2 * i + 1:
                undo.restore(phase)
            shard.catch_up(phase)
            if marks < 2 * i + 2:
                shard.run(phase)
        return [self._shards[index] for index in indices]

    def _replace(self, number: int, why: str) -> None:
        first, *more = why.splitlines()
        line = f"{first}: {more[-1]}" if more else first
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise HelperDied(f"{line}; {self._losses} lost update helpers are too many")
        self._said.append(f"{line}; a new one takes over ({self._losses} of at most {MOST_LOSSES})")
        self._control.forget(number)
        self._helpers[number], self._begun_s[number] = self._start_helper(number), time.monotonic()

    def messages(self) -> list[str]:
        """Return what happened to helpers since this was asked last, one line each."""
        lines, self._said = self._said, []
        return lines

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
    def own_shard(self) -> Any:
        """A shard that this process runs."""
        return self._shards[0]

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
            self._helpers.append(self._start_helper(number))
            self._begun_s.append(time.monotonic())
        weakref.finalize(self, stop, self._helpers)

    def _start_helper(self, number: int) -> Child:
        fds = [self._shared.fd, self._undo_memory.fd]
        helper = Child(f"update helper {number + 1}", "roboloop.algos.learner.shard_helper:main", fds)
        sizes = {"num_bytes": self._shared.num_bytes, "undo_bytes": self._undo_memory.num_bytes}
        with contextlib.suppress(OSError):  # it is dead: noticed when we look whether it is ready
            helper.channel.send({**self._job, "number": number, **sizes})
        return helper

    def _all_ready(self) -> bool:
        """Say whether all helpers can take work; one that dies or hangs before is replaced."""
        if not self._helpers:
            return False
        waiting = [number for number in range(len(self._helpers)) if not self._control.is_ready(number)]
        for number in waiting:
            helper = self._helpers[number]
            if not helper.is_alive():
                self._replace(number, _death_of(helper, "start"))
            elif time.monotonic() - self._begun_s[number] > START_S:
                stack = helper.where_it_hangs()
                helper.kill()
                self._replace(number, f"{_name_of(helper)} did not start in {START_S:.0f} s{innermost(stack)}")
        return not waiting

    def _post(self, phase_index: int, helpers: list[Child]) -> None:
        self._word = self._control.next_word(self._word, phase_index)
        self._control.post(self._word)
        for number, helper in enumerate(helpers):
            if self._control.is_parked(number):
                with contextlib.suppress(OSError):  # it is dead: noticed while waiting for it
                    helper.channel.send("wake up")

    def _wait(self, number: int, helper: Child, phase: str) -> None:
        is_done, word = self._control.is_done, self._word
        start_s = looked_s = time.monotonic()
        waited_s = 0.0
        spins = 0
        while not is_done(number, word):
            os.sched_yield()
            spins += 1
            if spins % 256 == 0:
                now_s = time.monotonic()
                if now_s - start_s > SPIN_S:
                    time.sleep(2e-4)
                    if not helper.is_alive() and not is_done(number, word):
                        raise HelperDied(_death_of(helper, phase))
                # a pause of this process, or of the whole machine, is not the helper's
                waited_s += min(now_s - looked_s, 0.1)
                looked_s = now_s
                if waited_s > TIMEOUT_S:
                    stack = helper.where_it_hangs()
                    raise HelperDied(f"{_name_of(helper)} hung in {phase!r} for {TIMEOUT_S:.0f} s{innermost(stack)}")


def _name_of(helper: Child) -> str:
    return f"{helper.name} (pid {helper.pid})"


def _death_of(helper: Child, when: str) -> str:
    first, *more = helper.how_it_ended().splitlines()
    return "\n".join([f"{_name_of(helper)} {first} during {when!r}", *more])


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


def sum_in_order(grads: list[Tensor], total: Tensor) -> Tensor:
    """Write the sum to ``total``, added in order, so that it does not depend on who computed them."""
    if len(grads) == 1:
        return total if total is grads[0] else total.copy_(grads[0])
    torch.add(grads[0], grads[1], out=total)
    for grad in grads[2:]:
        total.add_(grad)
    return total
