"""The helper process of a ShardPool: computes its shards when told, sleeps when idle, ends with its parent."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

import torch

from roboloop.algos.shared import Control, SharedMemory

SPIN_S = 2e-3
"""Idle time at full attention before the helper gives its core away."""
PARK_MS = 500
"""Longest sleep before looking again whether the parent lives."""


def main() -> None:
    """Entry point: arguments are helper number, memory descriptor and size; the job comes through stdin."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # the parent finishes its update and says when to end
    try:
        number, fd, num_floats = (int(arg) for arg in sys.argv[1:4])
        serve(number, SharedMemory(fd, num_floats))
    except EOFError:
        sys.exit(0)
    except Exception:
        os.write(1, traceback.format_exc().encode())  # read by the parent when it names the dead
        sys.exit(1)


def serve(number: int, shared: SharedMemory) -> None:
    """Do the posted phases for ever; EOFError when the parent has gone."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    job = read_job()
    module, name = job["kind"].split(":")
    work = getattr(importlib.import_module(module), name).from_data(job["work"])
    shards = [work.make_shard(shared.floats, i) for i in range(number + 1, job["shards"], job["processes"])]
    phases = type(shards[0]).PHASES
    control, parent_pid = Control(shared), os.getppid()
    word = control.word
    control.set_ready(number)
    while True:
        word = wait_for_word(control, number, word, parent_pid)
        phase = phases[control.phase_index(word)]
        for shard in shards:
            shard.run(phase)
        control.set_done(number, word)


def wait_for_word(control: Control, number: int, last: int, parent_pid: int) -> int:
    """Return the next posted word: spin for a moment, then sleep until the parent writes to the pipe."""
    spins = 0
    park_at_s = time.monotonic() + SPIN_S
    while (word := control.word) == last:
        os.sched_yield()
        spins += 1
        if spins % 64 == 0 and time.monotonic() > park_at_s:
            control.set_parked(number, True)
            # look once more: the parent may have posted before it could see that we are parked
            if control.word == last:
                sleep_until_woken(parent_pid)
            control.set_parked(number, False)
            if control.word == last:
                park_at_s = 0.0
    return word


def sleep_until_woken(parent_pid: int) -> None:
    """Block on the parent's pipe; EOFError if the parent has closed it or has died."""
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    if poller.poll(PARK_MS):
        if not os.read(0, 4096):
            raise EOFError
    elif os.getppid() != parent_pid:  # a forked sibling may still hold the other end of the pipe
        raise EOFError


def read_job() -> dict[str, Any]:
    """Return what to compute, as sent by the parent that started us."""
    size = int.from_bytes(read_exactly(8), "little")
    job: dict[str, Any] = json.loads(read_exactly(size))
    return job


def read_exactly(size: int) -> bytes:
    """Read whole messages from stdin, unbuffered, so that wake-up bytes stay in the pipe."""
    data = b""
    while len(data) < size:
        if not (part := os.read(0, size - len(data))):
            raise EOFError
        data += part
    return data
