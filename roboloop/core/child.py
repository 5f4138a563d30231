"""Child processes that end with us, say why they died, and show where they hang."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from roboloop.core.errors import UserError
from roboloop.core.vouched import for_children, of_parent
from roboloop.core.wire import Channel

DUMP_SIGNAL = signal.SIGUSR1
START_S = 120.0
"""Longest time from a child's start to its first sign of life, imports and simulators included."""
PIPE_S = 60.0
"""Longest time that a message to or from a child, once begun, may stand still."""
_END_S = 30.0
"""Longest wait for the end of a child that has closed its pipe: on a busy machine that takes seconds."""
_KILL_S = 10.0
"""Longest wait for the kernel to end a killed child: one that hangs in a device may never go."""
_PR_SET_PDEATHSIG = 1
_LOG_BYTES = 20_000


def python(code: str) -> list[str]:
    """Return the command of a fresh interpreter; it does not look for modules in the working directory."""
    return [sys.executable, "-P", "-c", code]


def same_modules() -> dict[str, str]:
    """Return the variables by which such an interpreter finds the modules that this one finds."""
    return {"PYTHONPATH": os.pathsep.join(places_of_modules()), **for_children()}


def places_of_modules() -> list[str]:
    """Return the folders in which this process looks for modules."""
    return [folder or os.getcwd() for folder in sys.path]


class Child:
    """A fresh interpreter running ``module:function(channel, *fds)``; a pipe joins the two."""

    def __init__(self, name: str, target: str, fds: Sequence[int] = ()) -> None:
        self.name = name
        ours, theirs = Pipe()
        _limit_waits(ours)
        self._log = os.memfd_create("roboloop-log", os.MFD_CLOEXEC)
        fixed = {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            **same_modules(),
        }
        # not multiprocessing's spawn: that imports the user's __main__ again, and needs a resource tracker
        arguments = [target, str(os.getpid()), str(theirs.fileno()), str(self._log), *(str(fd) for fd in fds)]
        self._process = subprocess.Popen(
            [*python("from roboloop.core.child import main; main()"), *arguments],
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
            code = self._process.wait(_END_S if self._has_hung_up() else 2.0)
        except subprocess.TimeoutExpired:
            return f"takes and sends no more messages but still runs{innermost(self.where_it_hangs())}"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self._read_log()
        return how + (f"\n{said}" if said else "")

    def _has_hung_up(self) -> bool:
        """Say whether the child has closed its end of the pipe, as one does that is ending."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.channel.connection.fileno())) as pipe:
            return not pipe.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return self.channel.connection.closed

    def where_it_hangs(self) -> str:
        """Ask for the Python stack of every thread; works while the child waits in a system call or in C."""
        if self._is_stopped():
            return "it is stopped (SIGSTOP, or a debugger)"
        seen = len(self._read_log())
        self._process.send_signal(DUMP_SIGNAL)
        deadline_s = time.monotonic() + 1.0
        while time.monotonic() < deadline_s and len(self._read_log()) == seen:
            time.sleep(0.02)
        time.sleep(0.05)
        return self._read_log()[seen:].strip()

    def _is_stopped(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_KILL_S)
        self.channel.close()

    def _close_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __del__(self) -> None:
        """Give the log's descriptor back."""
        self._close_log()


def innermost(stack: str) -> str:
    """Return where a stack of ``where_it_hangs`` is, as the end of a sentence; nothing if that is unknown."""
    lines = [line.strip() for line in stack.splitlines()]
    first = next((line for line in lines if line.startswith("File ")), lines[0] if lines else "")
    return f": {first}" if first else ""


def _limit_waits(connection: Connection[Any, Any]) -> None:
    """Let each read and write of a pipe fail (BlockingIOError) that stands still for PIPE_S."""
    span = struct.pack("ll", int(PIPE_S), int(PIPE_S % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, span)


def main() -> None:
    """Entry point of a child: die with the parent, leave the reason of a crash in the log."""
    target, parent_pid, pipe, log, *fds = sys.argv[1:]
    of_parent()
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
    except UserError as error:
        log_file.write(f"{type(error).__name__}: {error.shown}")
        log_file.flush()
        sys.exit(error.exit_code)
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
