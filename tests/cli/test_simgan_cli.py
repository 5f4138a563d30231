"""The pipeline from a simulator's policy to a target's, by one command, in seconds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pybullet")
SMALL = (
    "--behaviour-steps 4096 --dynamics-steps 4000 --refine-steps 4000 --target-episodes 3 --eval-episodes 2 "
    "--sysid-generations 1"
).split()
TABLE = Path("runs/simgan/hopper-bullet-to-power/table.json")


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "roboloop.cli", "simgan", "hopper", "--target", "power", *args]


def run(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("simgan")
    done = run(cwd, *SMALL)
    assert done.returncode == 0, done.stderr
    return cwd


def test_each_stage_is_a_command_and_the_end_is_a_table(undisturbed: Path) -> None:
    done = run(undisturbed, *SMALL, "--methods", "direct", "simgan", "sysid", "fine-tuned")
    assert done.returncode == 0, done.stderr
    assert "is finished" in done.stdout  # what was there was not done again
    assert "$ roboloop sysid hopper/bullet --data runs/simgan/hopper-bullet-to-power/target/0" in done.stdout
    results, truth = done.stdout.split("\nhopper/bullet-power, policies of")[1].split("\nhow true simulators are")
    assert first_words(results)[1:-1] == ["method", "direct", "simgan", "sysid", "fine-tuned"]
    assert first_words(truth)[1:] == ["simulator", "nothing", "source", "sysid", "simgan", "target"]


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.strip().splitlines()]


def test_a_pipeline_that_was_stopped_ends_as_one_that_was_not(undisturbed: Path, tmp_path: Path) -> None:
    table = json.loads((undisturbed / TABLE).read_text())
    first = subprocess.Popen(command(*SMALL), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    dynamics = tmp_path / "runs/simgan/hopper-bullet-to-power/dynamics/hopper-bullet/0/status.json"
    deadline_s = time.monotonic() + 200
    while not dynamics.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    # a stage that trains is saved and left with 4; one that is only being set up has nothing to save
    assert first.wait(timeout=100) in (4, -signal.SIGTERM)
    done = run(tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / TABLE).read_text())
    for method in ("direct", "simgan"):
        assert again["episodes"][method] == table["episodes"][method]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--target", "powr"], "unknown target 'powr'; did you mean 'power'?"),
        (["--target", "bullet"], "is the source itself"),
        (["--methods", "simgen"], "unknown method 'simgen'; did you mean 'simgan'?"),
        (["--generators", "0"], "--generators must be at least 1, not 0"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, args: list[str], said: str) -> None:
    done = run(tmp_path, *args)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
