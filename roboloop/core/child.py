"""Child processes that end with us, say why they died, and show where they hang."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from roboloop.core.wire import Channel

DUMP_SIGNAL = signal.SIGUSR1
START_S = 120.0
"""Longest time from a child's start to its first sign of life, imports and simulators included."""
_PR_SET_PDEATHSIG = 1
_LOG_BYTES = 20_000


class Child:
    """A fresh interpreter running ``module:function(channel, *fds)``; a pipe joins the two."""

    def __init__(self, name: str, target: str, fds: Sequence[int] = ()) -> None:
        self.name = name
        ours, theirs = Pipe()
        self._log = os.memfd_create("roboloop-log", os.MFD_CLOEXEC)
        fixed = {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        }
        # not multiprocessing's spawn: that imports the user's __main__ again, and needs a resource tracker
        arguments = [target, str(os.getpid()), str(theirs.fileno()), str(self._log), *(str(fd) for fd in fds)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from roboloop.core.child import main; main()", *arguments],
            stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), self._log, *fds), env={**os.environ, **fixed},
        )  # fmt: skip
        theirs.close()
        self.channel = Channel(ours)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Say whether it still runs."""
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        """Return what is known of a death: the signal or exit code, and what it left in its log."""
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe but still runs"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self._read_log()
        return how + (f"\n{said}" if said else "")

    def where_it_hangs(self) -> str:
        """Ask for the Python stack of every thread; works while the child waits in a system call or in C."""
        seen = len(self._read_log())
        self._process.send_signal(DUMP_SIGNAL)
        deadline_s = time.monotonic() + 1.0
        while time.monotonic() < deadline_s and len(self._read_log()) == seen:
            time.sleep(0.02)
        time.sleep(0.05)
        return self._read_log()[seen:].strip()

    def _read_log(self) -> str:
        return os.pread(self._log, _LOG_BYTES, 0).decode(errors="replace").strip()

    def rss_mb(self) -> float:
        """Return the memory it holds, in MB; 0 when it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
        except (OSError, IndexError):
            return 0.0

    def stop(self, patience_s: float = 5.0) -> None:
        """Hang up, wait for it to go, and kill it if it does not."""
        self.channel.close()
        try:
            self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_log()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self.channel.close()

    def _close_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __del__(self) -> None:
        """Give the log's descriptor back."""
        self._close_log()


def main() -> None:
    """Entry point of a child: die with the parent, leave the reason of a crash in the log."""
    target, parent_pid, pipe, log, *fds = sys.argv[1:]
    die_with(int(parent_pid))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent finishes its step and says when to end
    log_file = os.fdopen(int(log), "w", buffering=1)
    faulthandler.enable(log_file)
    faulthandler.register(DUMP_SIGNAL, log_file, all_threads=True)
    module, function = target.split(":")
    try:
        import importlib

        channel = Channel(Connection(int(pipe)))
        getattr(importlib.import_module(module), function)(channel, *(int(fd) for fd in fds))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the parent has gone or has hung up
    except Exception:
        import traceback

        log_file.write(traceback.format_exc())
        log_file.flush()
        sys.exit(1)


def outlive_parent() -> None:
    """Go on when the parent dies, for a child that must bring something to rest first; it must look for itself."""
    _death_signal(0)


def die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies, even while it hangs in a simulator."""
    _death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we could ask
        os._exit(0)


def _death_signal(number: int) -> None:
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, number)
