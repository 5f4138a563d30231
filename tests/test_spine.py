"""What a reader must know does not grow: the lines that training loads, and the files on the way of a transition."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES = {"sac": 16_800, "ppo": 17_800}
"""Of all our modules that training loads, the checks of the environment and the records of all suites among them."""
MOST_FILES = {"sac": 24, "ppo": 34}
LOADED = """
import json, sys
from pathlib import Path
from roboloop import cli
from roboloop.run import runner

train = runner.Runner.train

def counted(self):
    found = train(self)
    paths = [m.__file__ for name, m in sys.modules.items() if name.startswith("roboloop") and m.__file__]
    print(json.dumps(sum(len(Path(path).read_text().splitlines()) for path in paths)))
    return found

runner.Runner.train = counted
cli.main(sys.argv[1:])
"""
TINY = ["--algo.hidden", "8", "--algo.processes", "1", "--eval.every-steps", "0", "--env", "gym/Pendulum-v1"]
SETTINGS = {
    "sac": ["--steps", "40", "--warmup-steps", "20", "--algo.batch-size", "8"],
    "ppo": ["--steps", "64", "--algo.rollout-steps", "32", "--algo.epochs", "1"],
}


@pytest.mark.parametrize("algo", SETTINGS)
def test_training_loads_no_more_of_us_than_it_did(algo, tmp_path):
    command = [sys.executable, "-c", LOADED, "train", "--algo", algo, *SETTINGS[algo], *TINY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = next(json.loads(line) for line in done.stdout.splitlines() if line.isdigit())
    assert lines <= MOST_LINES[algo], "more is imported, or more is written: which of both should not be?"


@pytest.mark.parametrize("algo", MOST_FILES)
def test_a_transition_passes_through_no_more_files_than_it_did(algo):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "way.py", algo], capture_output=True, text=True, check=True
    )
    *_, files = done.stdout.splitlines()
    assert int(files.removesuffix(" files")) <= MOST_FILES[algo], done.stdout
