"""Update helpers that die or hang where a test wants it: as threads of this process, or as real ones."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roboloop.algos.learner import shard_helper
from roboloop.algos.learner.shards import Shard, ShardPool
from roboloop.core.wire import Channel


class Death(NamedTuple):
    """When and how a helper is lost."""

    phase: str
    way: str
    """``before`` the phase, or with it ``half`` done: what it changes in place is then half garbage."""
    hangs: bool = False
    shard: int = 1
    lives: int = 1
    """How often the phase is survived."""


class Gone(BaseException):
    """Ends the thread that stands for a helper."""


class MortalShard:
    """A shard that meets its death."""

    def __init__(self, shard: Shard, death: Death) -> None:
        self._shard, self._death, self._runs = shard, death, 0
        self.PHASES = shard.PHASES

    def run(self, phase: str) -> None:
        if phase != self._death.phase:
            return self._shard.run(phase)
        self._runs += 1
        if self._runs <= self._death.lives:
            return self._shard.run(phase)
        if self._death.way == "half":
            self._shard.run(phase)
            for changed in self._shard.changes(phase):
                changed[len(changed) // 2 :] = torch.nan
        _die(self._death.hangs)
        return None

    def changes(self, phase: str) -> list[Tensor]:
        return self._shard.changes(phase)

    def catch_up(self, phase: str) -> None:
        self._shard.catch_up(phase)


def _die(hangs: bool) -> None:
    me = threading.current_thread()
    if isinstance(me, ThreadHelper):
        while hangs and not me.killed:
            time.sleep(1e-3)
        raise Gone
    os.kill(os.getpid(), signal.SIGSTOP if hangs else signal.SIGKILL)


class Mortal:
    """A work whose shards die by the plan in a file: each takes the next death that is its own."""

    def __init__(self, work: Any, plan: Path) -> None:
        self._work, self._plan = work, plan

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Mortal:
        """Return the work that ``doom`` described."""
        module, name = data["kind"].split(":")
        return cls(getattr(importlib.import_module(module), name).from_data(data["work"]), Path(data["plan"]))

    def make_shard(self, memory: Tensor, index: int) -> Any:
        """Build a shard, mortal if the plan says so."""
        shard = self._work.make_shard(memory, index)
        with open(self._plan, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several helpers read it at once
            deaths = [Death(*each) for each in json.load(file)]
            own = next((death for death in deaths if death.shard == index), None)
            if own is None:
                return shard
            deaths.remove(own)
            file.seek(0)
            file.truncate()
            json.dump(deaths, file)
        return MortalShard(shard, own)


def doom(pool: ShardPool, plan: Path, deaths: Sequence[Death]) -> None:
    """Let the helpers of a pool, which must not have begun, die by a plan."""
    plan.write_text(json.dumps(deaths))
    job = {"kind": pool._job["kind"], "work": pool._job["work"], "plan": str(plan)}
    pool._job |= {"kind": f"{Mortal.__module__}:{Mortal.__qualname__}", "work": job}


class ThreadHelper(threading.Thread):
    """A helper process as a thread, in place of ``Child``: no imports to wait for."""

    count = 0

    def __init__(self, name: str, target: str, fds: Sequence[int] = ()) -> None:
        super().__init__(daemon=True, name=name)
        ours, theirs = Pipe()
        self.channel, self._theirs, self.killed = Channel(ours), Channel(theirs), False
        self._fds = [os.dup(fd) for fd in fds]
        ThreadHelper.count += 1
        self.pid = -ThreadHelper.count
        self.start()

    def run(self) -> None:
        try:
            shard_helper.main(self._theirs, *self._fds)
        except (Gone, EOFError, OSError):
            pass
        finally:
            self._theirs.close()

    def how_it_ended(self) -> str:
        self.join(5.0)
        return "was killed by SIGKILL"

    def where_it_hangs(self) -> str:
        return "it is stopped (SIGSTOP, or a debugger)"

    def kill(self) -> None:
        self.killed = True
        self.channel.close()
        self.join(5.0)

    def stop(self) -> None:
        self.kill()
