"""A rig under attack from its own machine: mutated frames, floods and connections, while a client commands the arm.

quiet         nobody else is there: what the machine itself costs
strangers     mutated frames without the token, each on a connection of its own
known         mutated frames of clients that have shown the token, and have not taken the arm
hand          mutated frames of clients that have taken the arm and set it in motion
flood         connections that send noise as fast as they can
commands      a client that has the arm and sends commands far out of reach as fast as it can
deaf          a client that has the arm, commands it and never reads
connections   idle ones, slow ones (a byte now and then), half-open ones and resets

In all phases but those in which an attacker has the arm, a client of ours commands at 20 Hz for a second, then falls
silent until the watchdog has held, and so on; attackers that have the arm try the watchdog now and then. "tick" is the
worst lateness of a control tick by the rig's own count, "watchdog" how long after its deadline a hold was seen by the
client. Exit code 1 if a promise is broken. All of it is on 127.0.0.1, and bounded in count and time.

    python benchmarks/rig_fuzz.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.errors import RobotFault
from roboloop.envs.panda.admission import token_path
from roboloop.envs.panda.client import ProcessPanda
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.drivers import StandingDriver
from roboloop.envs.panda.guests import KNOWN, STRANGERS
from roboloop.envs.panda.robot import Command

ATTACKER = Path(__file__).with_name("_rig_attack.py")
WATCHDOG_S, PERIOD_S, LEAD_S, QUIET_S = 0.3, 0.05, 1.0, 10.0
MOST_LATE_MS = 100.0
"""Of a tick and of the watchdog: both share two cores with the attackers."""
MOST_GROWN_MB, MOST_LET_IN_S = 64.0, 2.0
OWN_DESCRIPTORS = 8
HOME, AWAY = np.array([0.45, 0.0, 0.4]), np.array([0.45, 0.12, 0.45])
DOWN = np.array([0.0, 1.0, 0.0, 0.0])


# ---- the client at work, and what it sees ----


class Watcher(ProcessPanda):
    """A well-behaved client that also keeps what the rig says of its own lateness."""

    late_s = 0.0

    def _take_over(self, message: Any) -> None:
        super()._take_over(message)
        self.late_s = message.get("late_s", self.late_s)


@dataclass
class Phase:
    """One row of the table."""

    name: str
    done: int = 0
    seconds: float = 0.0
    commands: int = 0
    late_ms: float = 0.0
    watchdog_ms: list[float] = field(default_factory=list)
    descriptors: int = 0
    let_in_s: float = 0.0
    broken: list[str] = field(default_factory=list)


class Rig:
    """The rig of a user, and what can be seen of its process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "roboloop.cli", "rig", "panda/reach", "--port", "0"]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the rig
        self.process = subprocess.Popen(
            [*command, "--env.panda.watchdog-s", str(WATCHDOG_S)], stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.port = int(said.partition("127.0.0.1:")[2].partition(",")[0])
        self.token = token_path(self.port).read_text()
        self.config = PandaConfig(driver="process", address=f"127.0.0.1:{self.port}")

    def descriptors(self) -> int:
        """Return how many files it has open."""
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return 0

    def memory_mb(self) -> float:
        """Return how much memory it has."""
        with contextlib.suppress(OSError):
            return (
                int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            )
        return 0.0

    def lines(self) -> list[str]:
        """Return what it said of those it sent away."""
        self.errors.seek(0)
        return self.errors.read().splitlines()


def lead(rig: Rig, phase: Phase, goes_on: Any) -> None:
    """Command and fall silent by turns while an attack goes on."""
    with Watcher("reach", rig.config) as robot:
        robot.start()
        while goes_on():
            robot.send(Command(ee_pos_m=HOME, ee_quat=DOWN))
            holds, sent_s, until_s = robot.read().holds, time.monotonic(), time.monotonic() + LEAD_S
            was_prompt = True
            while time.monotonic() < until_s:
                robot.send(Command(ee_pos_m=AWAY if phase.commands % 40 < 20 else HOME, ee_quat=DOWN))
                was_prompt &= time.monotonic() - sent_s < WATCHDOG_S
                sent_s, phase.commands = time.monotonic(), phase.commands + 1
                robot.advance(PERIOD_S)
                phase.descriptors = max(phase.descriptors, rig.descriptors())
            if was_prompt and robot.read().holds != holds:
                phase.broken.append("the watchdog held though commands came")
            holds, deadline_s = robot.read().holds, sent_s + WATCHDOG_S
            while robot.read().holds == holds and time.monotonic() < deadline_s + 2.0:
                time.sleep(0.001)
            phase.watchdog_ms.append((time.monotonic() - deadline_s) * 1000)
            phase.late_ms = max(phase.late_ms, robot.late_s * 1000)
            asked_s = time.monotonic()
            StandingDriver("reach", rig.config).call().socket.close()
            phase.let_in_s = max(phase.let_in_s, time.monotonic() - asked_s)


def run(rig: Rig, kind: str, count: int, seed: int) -> Phase:
    """Let one attacker loose and see how the arm fares."""
    phase, began_s = Phase(kind.removesuffix("_ones")), time.monotonic()
    try:
        if kind == "quiet":
            lead(rig, phase, lambda: time.monotonic() < began_s + QUIET_S)
        else:
            _under_attack(rig, phase, kind, {"port": rig.port, "token": rig.token, "count": count, "seed": seed})
    except (RobotFault, OSError, RuntimeError) as error:
        phase.broken.append(f"{type(error).__name__}: {error}")
    phase.seconds = time.monotonic() - began_s
    _judge(rig, phase)
    return phase


def _under_attack(rig: Rig, phase: Phase, kind: str, job: dict[str, Any]) -> None:
    command = [sys.executable, str(ATTACKER), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        attacker.stdin.write(json.dumps(job))
        attacker.stdin.close()
        if kind not in ("hand", "commands", "deaf"):
            lead(rig, phase, lambda: attacker.poll() is None)
        while attacker.poll() is None:
            phase.descriptors = max(phase.descriptors, rig.descriptors())
            select.select([attacker.stdout], [], [], 0.1)
        said = attacker.stdout.read()
    if attacker.returncode:
        raise RuntimeError(f"the attacker ended with {attacker.returncode}")
    report = json.loads(said)
    phase.done, phase.late_ms = report["done"], max(phase.late_ms, report["late_ms"])
    phase.watchdog_ms += report["watchdog_ms"]
    phase.broken += report["strange"]


def _judge(rig: Rig, phase: Phase) -> None:
    promises = {
        "the rig is gone": rig.process.poll() is None,
        f"a tick came {phase.late_ms:.0f} ms late": phase.late_ms < MOST_LATE_MS,
        "the watchdog was late": all(-5.0 < ms < MOST_LATE_MS for ms in phase.watchdog_ms),
        "the watchdog was not tried": bool(phase.watchdog_ms),
        f"{phase.descriptors} descriptors": phase.descriptors <= STRANGERS + KNOWN + OWN_DESCRIPTORS,
        f"a client was let in after {phase.let_in_s:.1f} s": phase.let_in_s < MOST_LET_IN_S,
    }
    phase.broken += [what for what, is_kept in promises.items() if not is_kept]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shares = {"strangers": 2, "known_ones": 4, "hand": 4}
    kinds = ("quiet", "strangers", "known_ones", "hand", "flood", "commands", "deaf", "connections")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        rig, phases = Rig(), []
        before_mb = rig.memory_mb()
        print("phase           done     s commands  tick ms      watchdog ms  fds let in s")
        for kind in kinds:
            count = args.frames // shares[kind] if kind in shares else args.connections
            phases.append(phase := run(rig, kind, count, args.seed))
            print(row(phase), flush=True)
            if rig.process.poll() is not None:
                break
        return end(rig, phases, before_mb)


def row(phase: Phase) -> str:
    """Return a line of the table."""
    watchdog = f"{max(phase.watchdog_ms, default=float('nan')):.1f} of {len(phase.watchdog_ms)}"
    return (
        f"{phase.name:12} {phase.done:7} {phase.seconds:5.0f} {phase.commands:8} {phase.late_ms:8.1f} {watchdog:>16} "
        f"{phase.descriptors:4} {phase.let_in_s:8.3f} {'; '.join(phase.broken)}"
    ).rstrip()


def end(rig: Rig, phases: list[Phase], before_mb: float) -> int:
    """End the rig, and say what it said and whether all promises were kept."""
    grown_mb = rig.memory_mb() - before_mb
    with contextlib.suppress(ProcessLookupError):
        rig.process.send_signal(signal.SIGTERM)
    code, lines = rig.process.wait(20.0), rig.lines()
    broken = [what for phase in phases for what in phase.broken]
    if code != 0 or grown_mb > MOST_GROWN_MB or any(not line.startswith("roboloop: rig: ") for line in lines):
        broken.append(f"exit code {code}, {grown_mb:.0f} MB more, said {lines[-1:]}")
    frames = sum(phase.done for phase in phases if phase.name in ("strangers", "known", "hand"))
    print(f"{frames} frames; the rig ended with {code}, grew by {grown_mb:.1f} MB and said {len(lines)} lines")
    print(f"{len(broken)} promises broken" if broken else "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
