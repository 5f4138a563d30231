"""One cluster for all tests of a module; those that kill a machine leave room enough for the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.kit import Cluster


@pytest.fixture(scope="module")
def permits_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where environments of the cluster find that they may misbehave; its machines inherit the variable."""
    directory = tmp_path_factory.mktemp("permits")
    os.environ["MISBEHAVE"] = str(directory)
    yield directory
    del os.environ["MISBEHAVE"]


@pytest.fixture
def permits_everywhere(permits_directory: Path) -> Iterator[None]:
    """Let one environment misbehave."""
    permit = permits_directory / "0"
    permit.touch()
    yield
    permit.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cluster(permits_directory: Path) -> Iterator[Cluster]:
    """Three machines with two CPUs each, and the learner's."""
    made = Cluster(nodes=3)
    yield made
    made.close()
