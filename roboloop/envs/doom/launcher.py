"""Becomes ViZDoom's engine, bound to die with the process that asked for it; run as a script, without site-packages.

A ViZDoom engine waits for its controller for ever: without this, a killed training process leaves one orphan per
environment. ``python launcher.py <controller pid> <engine> <arguments>``
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel to kill us when our parent dies, then turn into the engine."""
    parent, engine = int(sys.argv[1]), sys.argv[2]
    os.setsid()  # else Ctrl-C reaches the engine too, which dies of it while its owner is still saving
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        sys.exit(1)
    os.execv(engine, sys.argv[2:])


if __name__ == "__main__":
    main()
