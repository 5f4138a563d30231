"""Count the files whose code runs on the way of a transition: from the end of ``env.step`` to the optimiser's step.

    .venv/bin/python scripts/way.py sac
    .venv/bin/python scripts/way.py ppo

Every function of roboloop that is called in between counts, in the order in which its file is first met. Training runs
in one process, by plain autograd.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1] / "roboloop"
RUNS: dict[str, dict[str, Any]] = {
    "sac": {"env": "gym/Pendulum-v1", "steps": 40, "warmup_steps": 20, "log_every_steps": 1000,
            "algo": {"name": "sac", "batch_size": 8, "hidden": (8,), "processes": 1, "replay_kernels": False}},
    "ppo": {"env": "gym/Pendulum-v1", "steps": 64, "log_every_steps": 1000,
            "algo": {"name": "ppo", "rollout_steps": 32, "hidden": (8,), "processes": 1, "epochs": 1}},
}  # fmt: skip


class Way:
    """Takes down the files of functions that are called while it is on."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.is_on = self.is_over = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Take down a call."""
        if self.is_on and event == "call":
            self._add(frame)
            caller = frame.f_back
            if caller is not None:
                self._add(caller)

    def _add(self, frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and (name := str(path.relative_to(ROOT))) not in self.files:
            self.files.append(name)


def files_on_the_way(name: str) -> list[str]:
    """Return the files of one transition's way, in order."""
    import roboloop as rl
    from roboloop.algos.learner.optimizer import FlatAdam
    from roboloop.envs.env import EpisodeEnv

    way = Way()
    step, update = EpisodeEnv.step, FlatAdam.update

    def stepped(self: Any, action: Any) -> Any:
        found = step(self, action)
        if not way.is_over:  # from the last environment step before the first update
            way.is_on = True
            way.files.clear()
        return found

    def moved(self: Any, *args: Any) -> None:
        way.is_on, way.is_over = False, True
        sys.setprofile(None)
        update(self, *args)

    with tempfile.TemporaryDirectory() as folder:
        EpisodeEnv.step, FlatAdam.update = stepped, moved  # type: ignore[method-assign]
        sys.setprofile(way)
        try:
            rl.train(**RUNS[name], runs_dir=folder, eval={"every_steps": 0})
        finally:
            sys.setprofile(None)
            EpisodeEnv.step, FlatAdam.update = step, update  # type: ignore[method-assign]
    return way.files


def main() -> None:
    """Print the files and their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=RUNS)
    files = files_on_the_way(parser.parse_args().algorithm)
    print(*files, sep="\n")
    print(len(files), "files")


if __name__ == "__main__":
    main()
