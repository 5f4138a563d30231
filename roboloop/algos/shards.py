"""Runs the shards of an update on several processes over shared memory; one process gives the same bits."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from roboloop.algos.shared import Control, SharedMemory

TIMEOUT_S = 60.0
"""Longest wait for a helper's part of one phase."""
SPIN_S = 0.02
"""Wait this long for a helper at full attention, then in short sleeps."""
HELPER = "from roboloop.algos.shard_helper import main; main()"


class Shard(Protocol):
    """One part of the work: phases that read and write only shared memory and the shard's own scratch."""

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
        self._shared = SharedMemory.create(num_floats)
        self.memory = self._shared.floats if device == "cpu" else torch.zeros(num_floats, device=device)
        self._control = Control(self._shared)
        self._shards = [work.make_shard(self.memory, i) for i in range(shards)]
        kind = f"{type(work).__module__}:{type(work).__qualname__}"
        self._job = {"kind": kind, "work": work.to_data(), "shards": shards, "processes": self._processes}
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._started = False
        self._word = 0

    def run(self, phases: Sequence[str]) -> None:
        """Run the shards' PHASES (or the first of them) in order, each on all shards before the next begins."""
        if not self._started:
            self._start()
        # until the helpers have imported torch, this process does their shards too: same bits, no waiting
        helpers = self._helpers if self._all_ready() else []
        own = self._shards[:: self._processes] if helpers else self._shards
        torch.set_flush_denormal(True)  # Adam moments of dead units decay into denormals, which are slow
        try:
            for index, phase in enumerate(phases):
                if helpers:
                    self._post(index, helpers)
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
            self._helpers.append(start_helper(number, self._shared, self._job))
        weakref.finalize(self, stop, self._helpers)

    def _all_ready(self) -> bool:
        if not self._helpers:
            return False
        if all(self._control.is_ready(number) for number in range(len(self._helpers))):
            return True
        for number, helper in enumerate(self._helpers):
            self._check_alive(number, helper, "start")
        return False

    def _post(self, phase_index: int, helpers: list[subprocess.Popen[bytes]]) -> None:
        self._word = self._control.next_word(self._word, phase_index)
        self._control.post(self._word)
        for number, helper in enumerate(helpers):
            if self._control.is_parked(number):
                assert helper.stdin is not None
                try:
                    helper.stdin.write(b"w")
                except BrokenPipeError:
                    self._check_alive(number, helper, "start of an update", patience_s=1.0)

    def _wait(self, number: int, helper: subprocess.Popen[bytes], phase: str) -> None:
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
                    self._check_alive(number, helper, phase)
                if waited_s > TIMEOUT_S:
                    raise HelperDied(f"{name_of(number, helper)} did not finish {phase!r} within {TIMEOUT_S:.0f} s")

    def _check_alive(self, number: int, helper: subprocess.Popen[bytes], when: str, patience_s: float = 0.0) -> None:
        deadline_s = time.monotonic() + patience_s
        while (code := helper.poll()) is None:
            if time.monotonic() >= deadline_s:
                return
            time.sleep(0.01)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = helper.stdout.read().decode(errors="replace").strip() if helper.stdout else ""
        raise HelperDied(f"{name_of(number, helper)} {how} during {when!r}" + (f"\n{said}" if said else ""))


def usable_processes(wanted: int, shards: int, device: str) -> int:
    """Return how many processes may run: one per core and shard; one where the hand-over would not be safe."""
    if device != "cpu" or sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return 1  # the counters rely on x86's ordered stores, the memory on Linux's memfd
    return max(1, min(wanted, shards, len(os.sched_getaffinity(0))))


def start_helper(number: int, shared: SharedMemory, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that computes shards; its stdin is its lifeline: when we die, it ends."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    # not multiprocessing's spawn: that imports the user's __main__ again, and needs a resource tracker
    helper = subprocess.Popen(
        [sys.executable, "-P", "-c", HELPER, str(number), str(shared.fd), str(shared.num_floats)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=(shared.fd,), env=env,
    )  # fmt: skip
    assert helper.stdin is not None
    payload = json.dumps(job).encode()
    helper.stdin.write(len(payload).to_bytes(8, "little") + payload)
    return helper


def stop(helpers: list[subprocess.Popen[bytes]]) -> None:
    """Close the lifelines, and kill whoever has not gone after a while."""
    for helper in helpers:
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                pipe.close()
    for helper in helpers:
        try:
            helper.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()


def name_of(number: int, helper: subprocess.Popen[bytes]) -> str:
    """Return how errors call a helper."""
    return f"update helper {number + 1} (pid {helper.pid})"
