"""A rig that stands by itself, for tests of all that talks to one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import Any

from roboloop.core.errors import RobotFault
from roboloop.envs.panda.robot import Robot

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


def first_fault(robot: Robot, patience_s: float = PATIENCE_S) -> RobotFault:
    """Read until the robot says what is wrong."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            robot.read()
        except RobotFault as fault:
            return fault
        time.sleep(0.001)
    raise AssertionError("no fault was seen")
