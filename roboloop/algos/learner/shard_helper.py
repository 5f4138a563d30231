"""The helper process of a ShardPool: computes its shards when told, sleeps when idle, ends with its parent."""

from __future__ import annotations

import importlib
import os
import time

import torch

from roboloop.algos.learner.shared import Control, floats_of, undo_area
from roboloop.algos.learner.undo import Undo
from roboloop.core.memory import SharedMemory
from roboloop.core.wire import Channel

SPIN_S = 2e-3
"""Idle time at full attention before the helper gives its core away."""


def main(channel: Channel, memory_fd: int, undo_fd: int) -> None:
    """Do the posted phases until the parent hangs up."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    job = channel.receive()
    number, shared = job["number"], SharedMemory(memory_fd, job["num_bytes"])
    module, name = job["kind"].split(":")
    work = getattr(importlib.import_module(module), name).from_data(job["work"])
    shards = [work.make_shard(floats_of(shared), i) for i in range(number + 1, job["shards"], job["processes"])]
    phases = shards[0].PHASES
    area = undo_area(SharedMemory(undo_fd, job["undo_bytes"]), job["processes"] - 1)[number]
    undos = [Undo({phase: shard.changes(phase) for phase in phases}, area) for shard in shards]
    control = Control(shared)
    word = control.word
    control.set_ready(number)
    while True:
        word = wait_for_word(control, number, word, channel)
        phase = phases[control.phase_index(word)]
        for i, (shard, undo) in enumerate(zip(shards, undos, strict=True)):
            if undo.is_needed(phase):
                undo.keep(phase)
                control.set_marks(number, word, 2 * i + 1)
                shard.run(phase)
                control.set_marks(number, word, 2 * i + 2)
            else:
                shard.run(phase)
        control.set_done(number, word)


def wait_for_word(control: Control, number: int, last: int, channel: Channel) -> int:
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
                channel.receive()
            control.set_parked(number, False)
            if control.word == last:
                park_at_s = 0.0
    return word
