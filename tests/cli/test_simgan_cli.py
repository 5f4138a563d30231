"""The pipeline from a simulator's policy to a target's, by one command, in seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.core.files import read_json
from roboloop.track.read import read_jsonl
from roboloop.track.summary_file import load

pytest.importorskip("pybullet")
SMALL = (
    "--behaviour-steps 4096 --dynamics-steps 4000 --refine-steps 4000 --target-episodes 3 --eval-episodes 2 "
    "--sysid-generations 1"
).split()
EPISODES = {
    "direct": Path("runs/simgan/hopper-bullet/bullet/0/eval/simgan-bullet-power.jsonl"),
    "simgan": Path("runs/simgan/hopper-bullet-to-power/refined/hopper-bullet/0/eval/simgan-bullet-power.jsonl"),
}
ERRORS = Path("runs/simgan/hopper-bullet-to-power/predict/0/errors.json")
SUMMARY = Path("runs/simgan/hopper-bullet-to-power/methods.json")


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
    results, rest = done.stdout.split("\nHeld-out episodes in hopper/bullet-power")[1].split("\nErrors of predicting")
    truth, parameters = rest.split("\nWhat was set in the source")
    assert first_words(results)[1:] == ["runs", "direct", "fine-tuned", "simgan", "sysid"]
    assert first_words(truth)[1:] == ["simulator", "nothing", "source", "sysid", "simgan", "target"]
    assert first_words(parameters)[1] == "parameter"
    assert "foot.motor" in parameters


def test_what_came_of_the_methods_can_be_reported_by_their_names(undisturbed: Path) -> None:
    runs = {run.experiment: run for run in load(undisturbed / SUMMARY)}
    assert set(EPISODES) <= set(runs)
    for method, path in EPISODES.items():
        returns = [row["return"] for row in read_jsonl(undisturbed / path)[1:]]
        assert runs[method].evaluations[0].whole.mean_return == pytest.approx(sum(returns) / len(returns), rel=1e-5)
    errors = read_json(undisturbed / ERRORS)["simulators"]
    said = runs["direct"].predictions
    assert [each.simulator for each in said][-1] == "target"
    assert [each.errors["1"] for each in said] == [row["errors"][0]["normalised"] for row in errors]
    assert [set(each.parameters) for each in said] == [set(row["parameters"]) for row in errors]


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.strip().splitlines()]


def test_a_pipeline_that_was_stopped_ends_as_one_that_was_not(undisturbed: Path, tmp_path: Path) -> None:
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
    for path in EPISODES.values():
        assert read_jsonl(tmp_path / path)[1:] == read_jsonl(undisturbed / path)[1:]


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
