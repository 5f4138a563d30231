"""A rig that stands by itself, for tests of all that talks to one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

PATIENCE_S = 20.0
"""What a busy machine may take to start a process."""


class Standing:
    """A rig as a user starts it."""

    def __init__(self, *args: Any) -> None:
        command = [sys.executable, "-m", "roboloop.cli", "rig", *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", self.line)
        assert found, self.process.communicate()[1]
        self.port = int(found[1])
        self.address = found[0]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said
