"""Lives of a command that is killed again and again: forked with all modules loaded, looked after, ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from roboloop.core.child import die_with
from roboloop.core.processes import process_alive

MARK = "ROBOLOOP_KILLED_LIFE"
"""In the environment of every process that a life has started."""
CHILDREN = {
    "worker": ("roboloop.sample.worker:main", "roboloop.sample.remote:main"),
    "helper": ("roboloop.algos.learner.shard_helper:main",),
    "recorder": ("roboloop.data.recorder_process:main",),
    "evaluator": ("roboloop.run.background:main",),
    "pilot": ("roboloop.sample.pilot_process:main",),
}
MOST_FILES = 1024
ORPHANS_S = 10.0
"""What children may take to notice that nobody is there: a pilot brings its robot to rest first."""


class Failure(Exception):
    """A promise that was not kept."""


@dataclass
class Life:
    """One process of a command, from its start to its end; what it says goes to a file."""

    words: list[str]
    log: Path
    status: Path
    """Folder below which the status of whatever trains is."""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    code: int | None = None

    def __post_init__(self) -> None:
        self.began_s, self._parent = time.time(), os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._live()

    def _live(self) -> None:
        code = 1
        try:
            die_with(self._parent)
            os.setsid()
            os.closerange(3, MOST_FILES)  # what we hold of others must not stay open because of it
            os.environ[MARK] = self.mark
            said = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for fd in (1, 2):
                os.dup2(said, fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            from roboloop import cli

            sys.argv = ["roboloop", *self.words]
            code = cli.main()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def has_ended(self) -> bool:
        """Look whether it has ended by itself."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def sleep(self, seconds: float) -> bool:
        """Wait so long, or until it has ended; say whether it still lives."""
        until_s = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < until_s:
            time.sleep(0.004)
        return self.code is None

    def wait_until_training(self, limit_s: float) -> bool:
        """Wait until it says that it trains; say whether it still lives."""
        until_s = time.monotonic() + limit_s
        while self.sleep(0.01) and not self._trains():
            if time.monotonic() > until_s:
                raise Failure(f"did not train within {limit_s:.0f} s")
        return self.code is None

    def _trains(self) -> bool:
        for path in self.status.rglob("status.json"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime > self.began_s:
                    return True
        return False

    def children(self, kind: str = "") -> list[int]:
        """Return the living processes that it has started, all or of one kind."""
        found, wanted = [], f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == self.pid:
                continue
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if not kind or set(CHILDREN[kind]) & set(words):
                        found.append(int(folder.name))
        return [pid for pid in found if process_alive(pid)]

    def kill(self, whole_group: bool) -> None:
        """End it with -9, alone or with all that it has started at once; nothing of it may then live on."""
        if whole_group:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.code = -signal.SIGKILL
        self.check_orphans()

    def kill_child(self, kind: str, draw: random.Random) -> int | None:
        """Kill one child of a kind; return its process id, if there was one."""
        pids = self.children(kind)
        if not pids:
            return None
        pid = draw.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    def check_orphans(self) -> None:
        """Raise where what it has started lives on."""
        until_s = time.monotonic() + ORPHANS_S
        while left := self.children():
            if time.monotonic() > until_s:
                names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[-80:] for pid in left}
                self.clean_up()
                raise Failure(f"children live on: {names}")
            time.sleep(0.02)

    def clean_up(self) -> None:
        """Leave nothing behind, whatever happened."""
        for pid in [*self.children(), *([self.pid] if not self.has_ended() else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.code is None:
            os.waitpid(self.pid, 0)
            self.code = -signal.SIGKILL

    def messages(self) -> str:
        """Return all that was said up to now by this and earlier lives of the same log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
