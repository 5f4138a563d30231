"""Small experiments that run for real in seconds."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roboloop.core.config import override
from roboloop.core.vouched import vouched
from roboloop.run.config import Experiment
from tests.rigs import Standing

TINY = {
    "experiment": "tiny",
    "steps": 400,
    "warmup_steps": 60,
    "log_every_steps": 50,
    "trackers": [],
    "env": {"id": "gym/Pendulum-v1", "max_episode_steps": 40, "eval_max_episode_steps": 40},
    "algo": {"hidden": [16, 16], "batch_size": 16, "processes": 1},
    "replay": {"capacity": 2000},
    "eval": {"every_steps": 150, "episodes": 2},
    "checkpoint": {"every_steps": 100, "every_s": 0},
    "record": {"min_free_mb": 0},
}


WALL_CLOCK = (
    "algos/test_shards",
    "core/test_wire",
    "envs/test_panda_polymetis",
    "envs/test_panda_rig",
    "faults/test_real_time",
    "faults/test_recorder",
    "faults/test_rig_socket",
    "faults/test_robot",
    "faults/test_update_helpers",
    "launch/test_launcher.py::test_limits",
    "run/test_evaluate_robot",
    "run/test_observers",
    "sample/test_parallel",
    "sample/test_realtime",
    "track/test_terminal",
)
"""Tests that look at the clock: what runs beside them could make them fail, so that they run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that must have the machine for themselves."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(WALL_CLOCK):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(autouse=True)
def as_if_it_were_the_first() -> None:
    """Let no test draw other numbers, compute on other threads or trust more because of those that ran before it."""
    vouched.take([])
    random.seed(0)
    np.random.seed(0)  # the one that Meta-World and others draw from
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def tiny(tmp_path: Path):
    """Return a function that makes a tiny experiment with changes."""

    def make(**changes):
        base = override(Experiment(), {**TINY, "runs_dir": str(tmp_path / "runs")})
        return override(base, changes)

    return make


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Standing]]:
    """Return a function that starts a rig; all are ended, and their tokens are in a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    started: list[Standing] = []

    def start(*args: Any, env: str = "panda/reach", port: int = 0) -> Standing:
        started.append(Standing(env, "--port", port, *args))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)
