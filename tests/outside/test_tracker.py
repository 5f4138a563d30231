"""The SQLite tracker of ``examples/outside``, a package of its own."""

import sqlite3
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from roboloop.cli import main
from roboloop.core import resolve
from roboloop.track.trackers import registry
from tests.outside.test_algorithm import TINY

ROOT = Path(__file__).parents[2]


def test_it_is_one_short_file():
    assert len((ROOT / "examples/outside/outside/tracker.py").read_text().splitlines()) <= 50


def test_the_package_names_it_by_an_entry_point():
    """In this checkout; what is installed may be older."""
    project = tomllib.loads((ROOT / "examples/outside/pyproject.toml").read_text())["project"]
    assert project["entry-points"][registry.GROUP] == {"sqlite": "outside.tracker:SQLite"}


@pytest.fixture
def installed(monkeypatch):
    """The entry point, as an installation of this checkout has it."""
    real, point = metadata.entry_points, metadata.EntryPoint("sqlite", "outside.tracker:SQLite", registry.GROUP)

    def found(**wanted):
        return metadata.EntryPoints([point]) if wanted == {"group": registry.GROUP} else real(**wanted)

    monkeypatch.setattr(resolve.metadata, "entry_points", found)
    resolve.entry_points.cache_clear()
    yield
    resolve.entry_points.cache_clear()


def test_by_its_short_name_it_keeps_all_runs_and_a_resumed_one_needs_no_trust(installed, tmp_path):
    words = ["train", *TINY, "--trackers", "sqlite", "--runs-dir", str(tmp_path), "--steps", "100"]
    for seed in ("0", "1"):
        assert main([*words, "--seed", seed]) == 0
    assert main(["train", "--resume", str(tmp_path / "default" / "Pendulum-v1" / "1"), "--steps", "200"]) == 0
    with sqlite3.connect(tmp_path / "metrics.sqlite") as file:
        found = file.execute("SELECT run, step FROM metrics WHERE name = 'updates' ORDER BY rowid").fetchall()
    steps = {name: [step for run, step in found if run == name] for name, _ in found}
    assert steps == {"default/Pendulum-v1/0": [50, 100], "default/Pendulum-v1/1": [50, 100, 150, 200]}
