"""Runs with trackers, through the command line: all at once, killed and resumed, broken, refused."""

import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

from roboloop.cli import main
from roboloop.core.sealed import seal_text
from roboloop.run.rundir import RunDir
from roboloop.track.read import read_jsonl
from tests.cli.test_cli import roboloop
from tests.mirrored import points, trackio_rows, wait_for_wandb_steps
from tests.run.helpers import train

FLAGS = (
    "--env gym/Pendulum-v1 --env.max-episode-steps 40 --env.eval-max-episode-steps 40 --steps 400 --warmup-steps 60"
    " --log-every-steps 50 --algo.hidden 16 16 --algo.batch-size 16 --algo.processes 1 --eval.every-steps 150"
    " --eval.episodes 2 --checkpoint.every-steps 50 --checkpoint.every-s 0 --experiment t"
).split()
OUTSIDE = "outside.tracker:SQLite"
OURS = [name for name in ("tensorboard", "wandb", "trackio") if find_spec(name)]


class RaisesInTheMiddle:
    """Named by a config of these tests."""

    def open(self, run):
        pass

    def write(self, step, row):
        if step >= 200:
            raise RuntimeError("the server said no")

    def close(self):
        pass


@pytest.fixture(autouse=True)
def database_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # of child processes
    if find_spec("trackio"):
        monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")


def command(runs: Path, *trackers: str) -> list[str]:
    return ["train", *FLAGS, "--runs-dir", str(runs), "--trackers", *trackers]


def run_in(runs: Path) -> Path:
    return runs / "t" / "Pendulum-v1" / "0"


def curve(rows: list[dict], name: str = "train/return") -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def sqlite_curve(runs: Path, name: str = "train/return") -> list[tuple[int, float]]:
    with sqlite3.connect(runs / "metrics.sqlite") as file:
        wanted = "SELECT step, value FROM metrics WHERE run = ? AND name = ? ORDER BY rowid"
        return file.execute(wanted, ("t/Pendulum-v1/0", name)).fetchall()


def assert_mirrored(runs: Path) -> None:
    """Every tracker shows what the log says, and no step twice."""
    run = run_in(runs)
    rows = read_jsonl(run / "metrics.jsonl")
    assert sqlite_curve(runs) == curve(rows)
    assert sqlite_curve(runs, "eval/return") == curve(rows, "eval/return")
    single = [(step, float(np.float32(value))) for step, value in curve(rows)]
    assert points(run / "events")["train/return"] == single
    steps = sorted({row["step"] for row in rows})
    if "wandb" in OURS:
        wait_for_wandb_steps(run, steps)
    if "trackio" in OURS:
        (shown,) = trackio_rows("roboloop", "t/Pendulum-v1/0").values()
        assert shown == sorted(row["step"] for row in rows)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> bytes:
    """Metrics of the run without trackers."""
    runs = tmp_path_factory.mktemp("plain")
    assert main(command(runs)) == 0
    assert not (run_in(runs) / "events").exists()
    return (run_in(runs) / "metrics.jsonl").read_bytes()


def test_a_run_mirrors_its_log_to_ours_and_to_a_tracker_of_an_outside_package(tmp_path, plain):
    assert main(command(tmp_path, *OURS, OUTSIDE)) == 0
    assert (run_in(tmp_path) / "metrics.jsonl").read_bytes() == plain
    assert_mirrored(tmp_path)


def test_killed_and_resumed_it_shows_no_step_twice_and_misses_none(tmp_path, plain, monkeypatch):
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of this process: it would outlive the one that is killed
    words = [sys.executable, "-m", "roboloop.cli", *command(tmp_path, *OURS, OUTSIDE)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run, deadline_s = run_in(tmp_path), time.monotonic() + 120
    # rows beyond the checkpoint that the resume begins at are mirrored already
    while len(list(run.glob("checkpoints/step-*"))) < 2 and process.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert RunDir.open(run, check_names=False).status()["state"] == "running"  # it was really cut
    time.sleep(1.1)  # W&B names its folders by the second
    assert roboloop("train", "--resume", run, "--trust").returncode == 0
    assert (run / "metrics.jsonl").read_bytes() == plain
    assert_mirrored(tmp_path)


def test_a_tracker_that_raises_is_dropped_with_one_line_and_training_is_the_same(tmp_path, plain, capsys):
    assert main(command(tmp_path, f"{__name__}:RaisesInTheMiddle", OUTSIDE)) == 0
    assert (run_in(tmp_path) / "metrics.jsonl").read_bytes() == plain
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "RaisesInTheMiddle" in line]
    assert "failed in write and is dropped: RuntimeError at " in line
    assert line.endswith("the server said no; training goes on")
    assert sqlite_curve(tmp_path)[-1][0] == 400  # others go on


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trackers", "tensorbord"], "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (["--trackers", "wandb"], "tracker wandb needs wandb: pip install 'roboloop[wandb]'"),
        (["--trackers", "os:abort"], "tracker 'os:abort' is no class"),
        (["--trackers", "--wandb.projct", "p"], "unknown option --wandb.projct; did you mean '--wandb.project'?"),
        (["--no-tensorboard"], "unknown option --no-tensorboard; did you mean '--trackers'?"),
        (["--wandb"], "unknown option --wandb; did you mean '--trackers'?"),
    ],
)
def test_a_tracker_that_cannot_be_used_is_one_line_and_nothing_is_left_on_disk(
    tmp_path, monkeypatch, capsys, words, said
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([*command(tmp_path)[:-1], *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorboard: false", "unknown config key 'tensorboard'; did you mean 'trackers'?"),
        ("wandb: true", "config key 'wandb' is a section, not a value: True; did you mean 'trackers'?"),
    ],
)
def test_a_config_file_with_the_old_keys_is_one_line_that_names_the_new_one(tmp_path, capsys, text, said):
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "mine.yaml"), "--runs-dir", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def saved(path: Path, **changes) -> None:
    """Change the config of a run, with a digest that fits; None takes a key out."""
    data = yaml.safe_load((path / "config.yaml").read_text()) | changes
    data = {key: value for key, value in data.items() if value is not None}
    (path / "config.yaml").write_bytes(seal_text(yaml.safe_dump(data, sort_keys=False)))


@pytest.mark.parametrize(("tensorboard", "wandb"), [(True, False), (False, True), (False, False)])
def test_a_run_of_an_earlier_version_resumes_with_the_mirrors_that_it_had(tiny, tensorboard, wandb):
    path = train(tiny(), crash_after=250)
    saved(path, trackers=None, trackio=None, tensorboard=tensorboard, wandb=wandb)
    if wandb and "wandb" not in OURS:
        pytest.skip("the extra wandb is not installed")
    assert main(["train", "--resume", str(path)]) == 0
    assert (path / "events").exists() == tensorboard
    assert (path / "wandb").exists() == wandb
    assert main(["train", "--resume", str(path), "--steps", "450", "--trackers", "tensorboard"]) == 0
    assert RunDir.open(path).config.trackers == ("tensorboard",)


def test_a_strangers_run_does_not_choose_the_tracker(tiny, tmp_path, monkeypatch, capsys):
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').close()\nfrom tests.run.test_trackers import RaisesInTheMiddle as Own\n"
    (tmp_path / "stranger_tracker.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = train(tiny(), crash_after=250)
    saved(path, trackers=["stranger_tracker:Own"])
    for verb in (["train", "--resume", str(path)], ["eval", str(path), "--episodes", "1"]):
        assert main(verb) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "trackers 'stranger_tracker:Own' is neither of roboloop nor of an installed plug-in; --trust" in line
    assert not mark.exists()
    assert main(["train", "--resume", str(path), "--trust"]) == 0
    assert mark.exists()


def test_a_tracker_of_the_users_own_config_file_is_used_and_goes_on_with_the_same_command(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"trackers: ['{__name__}:RaisesInTheMiddle']\n")
    words = ["train", "--config", str(tmp_path / "mine.yaml"), *FLAGS, "--runs-dir", str(tmp_path)]
    assert main([*words, "--steps", "100"]) == 0
    assert main([*words, "--steps", "150", "--resume"]) == 0


def test_a_sweep_refuses_an_unknown_tracker_before_anything_starts(tmp_path, capsys):
    words = ["sweep", "cartpole", "--axis", "algo.gamma", "0.9", "--name", "s", "--runs-dir", str(tmp_path)]
    assert main([*words, "--trackers", "trakio"]) == 2
    assert "unknown tracker 'trakio'; did you mean 'trackio'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
