"""Processes that stay alive and are timed in turn, so that all contenders see the same machine."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
Run = Callable[[int], float | None]
"""Does so many units of work; returns its seconds where only a part of it is to be timed."""


def serve(make: Callable[[], Run]) -> None:
    """Be a contender: build and warm up, then time as many units as each line on stdin asks for."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    run = make()
    out.write("ready\n")
    for line in sys.stdin:
        start_s = time.perf_counter()
        own_s = run(int(line))
        out.write(f"{time.perf_counter() - start_s if own_s is None else own_s}\n")


class Contender:
    """A process that waits to be timed."""

    def __init__(
        self, name: str, script: str, args: Sequence[str], threads: int, in_peers_venv: bool, multiple: int = 1,
        root: Path | None = None,
    ) -> None:  # fmt: skip
        self.name, self.rates = name, list[float]()
        self._units = self._multiple = multiple
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}
        env["PYTHONPATH"] = str((root or ROOT).resolve())
        command = [str(PEERS) if in_peers_venv else sys.executable, script, "--serve", *args]
        if threads == 1:
            env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1, env=env)
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise SystemExit(f"contender {self.name} failed:\n{self._process.stderr.read()[-2000:]}")
        return line

    def time(self, units: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{units}\n")
        return float(self._read())

    def calibrate(self, block_s: float) -> None:
        """Choose a number of units that takes about ``block_s``."""
        while (seconds := self.time(self._units)) < block_s / 4:
            self._units *= 2
        self._units = max(1, round(self._units * block_s / seconds / self._multiple)) * self._multiple

    def block(self) -> None:
        """Time one block."""
        self.rates.append(self._units / self.time(self._units))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def interleave(contenders: list[Contender], blocks: int, block_s: float) -> dict[str, list[float]]:
    """Time all contenders block by block, and end them."""
    try:
        for contender in contenders:
            contender.calibrate(block_s)
        for _ in range(blocks):
            for contender in contenders:
                contender.block()
    finally:
        for contender in contenders:
            contender.close()
    return {c.name: c.rates for c in contenders}


def medians(rates: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rates.items()}


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of blocks: both sides of each saw the machine within the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def print_table(header: list[str], rows: list[list[str]]) -> None:
    sizes = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.rjust(size) for cell, size in zip(row, sizes, strict=True)))
