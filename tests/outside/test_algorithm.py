"""TD3 from ``examples/outside``, a package of its own, trains, resumes, sweeps and is evaluated as ours do."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.algos import registry
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.vouched import vouched
from tests.cli.test_cli import roboloop
from tests.outside import kit
from tests.outside.kit import TWO_WORKERS, digest

ROOT = Path(__file__).parents[2]
TINY = (
    "--env", "gym/Pendulum-v1", "--steps", "600", "--env.max-episode-steps", "40",
    "--env.eval-max-episode-steps", "40", "--algo.hidden", "16", "16", "--algo.batch-size", "16", *kit.SMALL,
)  # fmt: skip


def train(root: Path, *words: object, experiment: str = "a", algo: str = "td3") -> Path:
    return kit.train(root, "Pendulum-v1", "--algo", algo, *TINY, *words, experiment=experiment)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("outside"), *TWO_WORKERS)


def test_the_example_is_a_package_of_its_own_and_one_short_file():
    point = next(p for p in registry.entry_points(registry.GROUP).items() if p[0] == "td3")
    assert point == ("td3", "outside.td3:SPEC")
    assert len((ROOT / "examples/outside/outside/td3.py").read_text().splitlines()) <= 200
    assert "td3" in registry.known()


def test_killed_with_two_workers_and_resumed_it_ends_with_the_same_bytes(finished, tmp_path):
    words = ["train", "--algo", "td3", *TINY, "--experiment", "a", "--runs-dir", str(tmp_path), *TWO_WORKERS]
    command = [sys.executable, "-m", "roboloop.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = tmp_path / "a" / "Pendulum-v1" / "0"
    deadline = time.monotonic() + 120
    while not list(run.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((run / "status.json").read_text())["state"] == "running"  # it was really cut
    assert roboloop("train", "--resume", run).returncode == 0
    assert digest(run) == digest(finished)


def test_workers_and_one_process_give_the_same_bytes(finished, tmp_path):
    assert digest(train(tmp_path, *TWO_WORKERS, "--sample.workers", "0")) == digest(finished)


def test_it_is_evaluated_and_its_policy_loads_from_the_checkpoint(finished):
    done = roboloop("eval", finished, "--episodes", 2)
    assert done.returncode == 0, done.stderr
    assert "over 2 episodes" in done.stdout


def test_a_sweep_over_its_own_keys_runs_all_variants(tmp_path):
    words = ("--axis", "algo.policy_delay", "1", "2", "--seeds", "0", "--name", "s", "--runs-dir", tmp_path)
    (tmp_path / "base.yaml").write_text("algo: {name: td3}\n")
    done = roboloop("sweep", "--config", tmp_path / "base.yaml", *TINY, *words, "--steps", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("s/*/Pendulum-v1/0/plots/curve.png"))) == 2


def test_the_page_shows_it(finished):
    pytest.importorskip("starlette", reason="the extra dash is not installed")
    from tests.dash.kit import client

    runs = client(finished.parents[2]).get("/api/runs").json()["runs"]
    assert [run["name"] for run in runs] == ["a/Pendulum-v1/0"]


def test_by_module_and_attribute_it_needs_no_entry_point_but_a_strangers_run_may_not_name_it():
    vouched.take(["train", "--algo", "outside.td3:SPEC"])
    assert registry.find("outside.td3:SPEC").name == "td3"
    vouched.take(["eval", "run"])
    assert registry.find("outside.td3:SPEC").name == "td3"  # of an installed plug-in
    with pytest.raises(DataError, match=r"^algo.name 'os:system' is neither of roboloop nor of an installed plug-in"):
        registry.find("os:system")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tdd3", "unknown algorithm 'tdd3'; did you mean 'td3'?"),
        ("outside.td4:SPEC", "algorithm 'outside.td4:SPEC': there is no module 'outside.td4'"),
        ("outside.td3:SPECS", "algorithm 'outside.td3:SPECS': module outside.td3 has no 'SPECS'"),
        ("outside.td3:TD3", "algorithm 'outside.td3:TD3' must be an AlgorithmSpec, not type"),
    ],
)
def test_a_wrong_name_is_one_line(name, message):
    with pytest.raises(ConfigError) as error:
        registry.find(name)
    assert str(error.value).startswith(message)


def test_training_with_a_record_that_is_wrong_says_so_in_one_line():
    done = roboloop("train", "--algo", "outside.td3:TD3Config", *TINY)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "must be an AlgorithmSpec" in done.stderr


def test_resource_fields_of_its_config_are_its_own(finished):
    done = roboloop("train", "--resume", finished, "--algo.gamma", "0.5")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot change in a resumed run" in done.stderr
