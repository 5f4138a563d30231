"""A suite, auxiliary tasks, an expert and a reward from ``examples/outside``, a package of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.errors import DataError
from roboloop.core.vouched import vouched
from roboloop.envs import make, registry, scripted_policy
from roboloop.envs.check import check_env
from roboloop.run.rundir import RunDir
from tests.cli.test_cli import roboloop
from tests.outside.kit import SMALL, TWO_WORKERS, digest, train

ROOT = Path(__file__).parents[2]
TASKS = ("reach", "near", "still")
LFGP = (
    "--algo", "lfgp", "--algo.sac.hidden", "16", "16", "--algo.sac.batch-size", "16",
    "--algo.discriminator.hidden", "16", "--steps", "300",
)  # fmt: skip
SAC = ("--algo.hidden", "16", "16", "--algo.batch-size", "16", "--steps", "200")
PENDULUM = ("--env", "gym/Pendulum-v1", "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40")


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("demos") / "planar"
    for task in TASKS:
        done = roboloop("record", "planar/reach", "--expert", "--task", task, "--episodes", 3, "--out", root / task)
        assert done.returncode == 0, done.stderr
        assert "3 episodes" in done.stdout
    return root


def test_the_suite_is_found_by_its_entry_point_and_its_options_are_flags():
    assert registry.entry_points(registry.GROUP)["planar"] == "outside.planar:SUITE"
    assert "planar/reach" in registry.known_ids()
    cfg = registry.config("planar/reach", link_m=0.25)
    check_env(lambda: make(cfg))
    assert make(cfg).spec.protocol["link_m"] == 0.25
    done = roboloop("train", "--env", "planar/reach", "--help")
    assert "--env.link-m 0.5" in done.stdout
    assert "Length of each link." in done.stdout
    assert "--env.reward-version" not in done.stdout


@pytest.mark.parametrize("suite", ["planar", "outside.planar:SUITE"])
def test_a_task_that_it_does_not_list_is_refused_with_the_nearest_that_it_does(suite, tmp_path):
    for words in (["train", "--runs-dir", str(tmp_path), "--steps", "50", "--env"], ["envs", "check"]):
        done = roboloop(*words, f"{suite}/raech")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "unknown planar task 'raech'; did you mean 'reach'?" in done.stderr
    assert not list(tmp_path.iterdir())


def test_its_expert_reaches_the_goal_and_that_of_an_auxiliary_task_rests():
    env, rng = make(registry.config("planar/reach")), np.random.default_rng(0)
    for task, moves in (("", True), ("near", True), ("still", False)):
        expert, obs, success = scripted_policy("planar/reach", task), env.reset(3), 0.0
        for _ in range(40):
            action = expert.act(obs[None], np.zeros((1, 0), np.float32), False, rng).action[0]
            obs, _, _, _, info = env.step(action)
            success = max(success, info["success"])
        assert bool(success) == moves


def test_guided_play_learns_on_it_with_two_workers_as_with_one_process_and_resumes(demos, tmp_path):
    words = ("--env", "planar/reach", *LFGP, "--algo.expert.directory", demos, "--algo.tasks", *TASKS)
    whole = train(tmp_path, "reach", *words, *TWO_WORKERS, experiment="workers")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert any("choice/still" in row for row in rows)
    alone = train(tmp_path, "reach", *words, *TWO_WORKERS, "--sample.workers", 0, experiment="alone")
    assert digest(alone) == digest(whole)
    part = train(tmp_path, "reach", *words, *TWO_WORKERS, "--steps", "150", experiment="part")
    assert roboloop("train", "--resume", part, "--steps", "300").returncode == 0
    assert digest(part)[0] == digest(whole)[0]


def test_tasks_and_expert_of_ones_own_serve_a_plain_gymnasium_environment(tmp_path):
    own = ("--env.tasks", "outside.pendulum:tasks", "--env.expert", "outside.pendulum:expert")
    demos = tmp_path / "demos"
    for task in ("upright", "fast"):
        words = ("--expert", "--task", task, "--episodes", "3", "--out", demos / "pendulum" / task)
        done = roboloop("record", "gym/Pendulum-v1", *words, *own)
        assert done.returncode == 0, done.stderr
        assert "success 100%" in done.stdout or task == "fast"
    directory = ("--algo.expert.directory", demos / "pendulum")
    words = (*PENDULUM, *own, *LFGP, *directory, "--algo.tasks", "upright", "fast", *TWO_WORKERS)
    run = train(tmp_path, "Pendulum-v1", *words)
    done = roboloop("eval", run, "--task", "upright", "--episodes", 1)
    assert done.returncode == 0, done.stderr


def test_a_reward_of_ones_own_is_learned_from_and_the_environments_own_is_reported(tmp_path):
    reward = ("--env.reward", "outside.pendulum:upright")
    whole = train(tmp_path, "Pendulum-v1", *PENDULUM, *SAC, *reward, *TWO_WORKERS)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if "train/shaped_return" in row)
    assert row["train/return"] < -100 < -40 < row["train/shaped_return"]
    assert "train/success" in row
    part = train(tmp_path, "Pendulum-v1", *PENDULUM, *SAC, *reward, *TWO_WORKERS, "--steps", 130, experiment="part")
    assert roboloop("train", "--resume", part, "--steps", 200).returncode == 0
    assert digest(part)[0] == digest(whole)[0]  # it was cut in the middle of an episode


@pytest.mark.parametrize(
    ("env_id", "keys"),
    [
        ("tiny/point", {"reward": "roboloop.core.files:os.remove"}),
        ("tiny/point", {"expert": "roboloop.core.files:os.system"}),
        ("tiny/point", {"tasks": "outside.pendulum:np.load"}),
        ("tiny/point", {"reward": "roboloop.cli:main"}),
        ("gym/Pendulum-v1", {"wrappers": ["gymnasium:make"]}),
        ("panda/reach", {"panda": {"driver": "roboloop.core.files:os.popen"}}),
    ],
)
def test_a_run_from_elsewhere_reaches_no_other_code_through_that_of_a_plug_in(tiny, env_id, keys):
    run = RunDir.create(tiny(experiment="stranger", env={"id": env_id, **keys}), [])
    run.close()
    vouched.take(["eval"])
    with pytest.raises(DataError, match="is neither of roboloop nor of an installed plug-in"):
        RunDir.open(run.path)


def test_a_run_from_elsewhere_may_name_gymnasiums_wrappers(tiny):
    env = {"id": "gym/Pendulum-v1", "wrappers": ["gymnasium.wrappers:FlattenObservation"]}
    run = RunDir.create(tiny(env=env), [])
    run.close()
    vouched.take(["eval"])
    RunDir.open(run.path).close()


@pytest.mark.parametrize("key", ["reward", "tasks", "expert"])
def test_a_run_from_elsewhere_may_name_installed_plug_ins_and_no_other_code(tiny, key):
    run = RunDir.create(tiny(env={"id": "tiny/point", key: "outside.pendulum:upright"}), [])
    run.close()
    vouched.take(["eval"])
    RunDir.open(run.path).close()
    run = RunDir.create(tiny(experiment="stranger", env={"id": "tiny/point", key: "os:getcwd"}), [])
    run.close()
    with pytest.raises(DataError, match=rf"env\.{key} 'os:getcwd' is neither of roboloop nor of an installed plug-in"):
        RunDir.open(run.path)


def test_a_suite_by_module_and_attribute_is_refused_where_nobody_typed_it():
    vouched.take(["train", "--env", "outside.planar:SUITE/reach"])
    assert registry.split("outside.planar:SUITE/reach") == ("outside.planar:SUITE", "reach")
    assert make(registry.config("outside.planar:SUITE/reach")).spec.action_dim == 2
    vouched.take(["eval"])
    with pytest.raises(DataError, match=r"env\.id 'os:path' is neither of roboloop nor of an installed plug-in"):
        registry.split("os:path/join")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--env", "plannar/reach"), "unknown suite 'plannar' in env 'plannar/reach'; did you mean 'planar'?"),
        (("--env", "planar/reach", "--env.link", "1"), "unknown option --env.link; did you mean '--env.link-m'?"),
        (("--env", "outside.planar:Planar/reach"), "suite 'outside.planar:Planar' must be a Suite, not type"),
        (("--env", "tiny/point", "--env.reward", "outside.pendulum:up"), "module outside.pendulum has no 'up'"),
        (("--env", "tiny/point", "--env.reward", "json:dumps"), "env.reward 'json:dumps' raised TypeError"),
        (("--env", "tiny/point", "--env.reward", "numpy:subtract"), "must return 1 finite rewards for 1 transitions"),
        (("--env", "tiny/point", "--env.panda.hz", "5"), "tiny/point has no env.panda, it is for panda"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(words, message, tmp_path):
    done = roboloop("train", *words, "--steps", "10", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


MODULE = """
from dataclasses import dataclass
from outside.planar import make, PlanarEnvConfig
from roboloop.envs.suite import Suite
SUITE = Suite("mine", make, ("reach",), PlanarEnvConfig)
def far(obs, action, next_obs):
    return next_obs[:, 4]
"""


def test_a_module_in_the_working_directory_is_found_after_all_others_and_only_by_a_name_that_was_typed(tmp_path):
    def run_there(*words):
        command = [sys.executable, "-P", "-m", "roboloop.cli", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)

    (tmp_path / "mine.py").write_text(MODULE)
    for name in ("json", "wandb", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was here')")
    words = ("--env", "mine:SUITE/reach", "--env.reward", "mine:far", *SMALL, *SAC, *TWO_WORKERS)
    done = run_there("train", *words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "default" / "reach" / "0"
    done = run_there("eval", run)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "neither of roboloop nor of an installed plug-in" in done.stderr
    for name in ("sounddevice", "mlflow"):  # not installed, and no name of code that was typed
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was here')")
    (tmp_path / "mlflow:x").mkdir()
    done = run_there("eval", "mlflow:x")
    assert "stranger" not in done.stdout + done.stderr
    done = run_there("eval", run, "--trust")
    assert (done.returncode, done.stderr) == (0, "")
    assert "stranger" not in done.stdout


def test_a_config_file_may_name_a_module_beside_it_and_how_to_go_on_is_said_with_trust(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    keys = "env: {id: planar/reach, reward: 'mine:far'}"
    (tmp_path / "a.yaml").write_text(keys)
    command = [sys.executable, "-P", "-m", "roboloop.cli", "train", "--config", "a.yaml", *PENDULUM[2:], *SMALL, *SAC]
    done = subprocess.run(
        [*command, "--eval.episodes", "0", "--steps", "70"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"roboloop eval \S+ --checkpoint all --trust", done.stdout)
