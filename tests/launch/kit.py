"""Sweeps of stand-ins: a launcher in a process of its own, whose runs are tests/launch/trainee.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CODE = (
    "import sys; from roboloop import cli; from roboloop.launch import job\n"
    "job.ROBOLOOP = (sys.executable, '-m', 'tests.launch.trainee')\n"
    "sys.exit(cli.main(sys.argv[1:]))"
)
ROOT = Path(__file__).parents[2]


class Sweep:
    """One sweep of a test, as a user would start it again and again."""

    def __init__(
        self, root: Path, seeds: str, behaviour: dict[int, str], axis: str = "0.9 0.99", source: object = "cartpole"
    ) -> None:
        self.root, self.order = root, root / "order.txt"
        self.args = ["sweep", str(source), "--name", "s", "--runs-dir", str(root / "runs"), "--steps", "100"]
        self.args += ["--seeds", *seeds.split(), *(["--axis", "algo.gamma", *axis.split()] if axis else [])]
        self.env = {
            **os.environ,
            "BEHAVIOUR": json.dumps(behaviour),
            "ORDER": str(self.order),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    def path(self, gamma: float, seed: int) -> Path:
        return self.root / "runs" / "s" / f"gamma={gamma}" / "CartPole-v1" / str(seed)

    def begin(self, *more: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, *self.args, *map(str, more)]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *more: object) -> tuple[int, str]:
        process = self.begin(*more)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out

    def verb(self, *args: object) -> str:
        done = self.tell(*args)
        done.check_returncode()
        return done.stdout

    def tell(self, *args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CODE, *map(str, args)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def started(self) -> list[str]:
        return [line.split(" ")[0] for line in self.order.read_text().splitlines()] if self.order.exists() else []

    def state(self, gamma: float, seed: int) -> str:
        try:
            return json.loads((self.path(gamma, seed) / "status.json").read_text())["state"]
        except FileNotFoundError:
            return ""


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.02)
