"""Every verb end to end, as a user types it; every bad input is one line and exit code 2."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roboloop.run.checkpoint import steps
from roboloop.run.recipes import names

TINY = (
    "--env gym/InvertedPendulum-v5 --env.max-episode-steps 30 --env.eval-max-episode-steps 30"
    " --steps 200 --warmup-steps 50 --log-every-steps 50 --replay.capacity 1000"
    " --algo.hidden 8 8 --algo.batch-size 8 --algo.processes 1"
    " --eval.every-steps 100 --eval.episodes 2 --checkpoint.every-steps 50 --checkpoint.milestone-steps 100"
).split()


AT_NOWHERE = (
    "--env.panda.driver process --env.panda.address 127.0.0.1:9 --sample.real-time process --eval.episodes 0"
).split()


def roboloop(*args, cwd=None, **variables):
    command = [sys.executable, "-m", "roboloop.cli", *map(str, args)]
    env = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=300)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    done = roboloop("train", *TINY, "--experiment", "a", "--runs-dir", root)
    assert done.returncode == 0, done.stderr
    return root / "a" / "InvertedPendulum-v5" / "0"


def test_help_answers_in_half_a_second():
    times = []
    for _ in range(3):
        before = cpu_s_of_children()
        done = roboloop("--help")
        times.append(cpu_s_of_children() - before)
        assert "train" in done.stdout
    assert min(times) < 0.5  # of the processor: what waits for others is not its fault


def cpu_s_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_training_leaves_a_complete_run_directory(finished):
    for name in ("config.yaml", "meta.json", "status.json", "metrics.jsonl", "timing.jsonl", "plots/curve.png"):
        assert (finished / name).stat().st_size > 0
    assert list((finished / "events").iterdir())
    assert list((finished / "journal").glob("*.rlj"))
    assert json.loads((finished / "status.json").read_text())["state"] == "done"
    steps = [json.loads(line)["step"] for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == 200


def test_starting_it_again_says_so_with_its_own_exit_code(finished):
    done = roboloop("train", *TINY, "--experiment", "a", "--runs-dir", finished.parents[2])
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "is finished" in done.stderr
    assert roboloop("train", "--resume", finished).returncode == 3


def test_runs_lists_state_steps_and_speed(finished):
    done = roboloop("runs", finished.parents[2])
    assert "a/InvertedPendulum-v5/0" in done.stdout
    assert "done" in done.stdout
    assert "200/200" in done.stdout


def test_eval_writes_results_and_a_video(finished):
    done = roboloop("eval", finished, "--episodes", 3, "--video")
    assert done.returncode == 0, done.stderr
    assert "over 3 episodes" in done.stdout
    results = next((finished / "eval").glob("test-*.jsonl"))
    assert len(results.read_text().splitlines()) == 4
    assert next((finished / "videos").iterdir()).stat().st_size > 1000
    assert roboloop("eval", finished, "--episodes", 3).stdout == done.stdout.split("video:")[0]


def test_eval_of_all_checkpoints_prints_a_table_and_writes_rows_as_training_does(finished):
    before = (finished / "metrics.jsonl").read_bytes()
    done = roboloop("eval", finished, "--episodes", 3, "--checkpoint", "all")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (finished / "eval.jsonl").read_text().splitlines()]
    trained = [json.loads(line) for line in before.decode().splitlines() if '"eval/return"' in line]
    assert [row["step"] for row in rows] == steps(finished / "checkpoints")
    assert list(rows[0]) == list(trained[0])
    shown = [line.split() for line in done.stdout.splitlines()]
    for row in rows:
        assert [str(row["step"]), "-", f"{row['eval/return']:.1f}"] in shown
    assert roboloop("eval", finished, "--episodes", 3, "--checkpoint", "all").stdout == done.stdout
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_is_left_out_and_a_film_is_of_one(finished, tmp_path):
    copy = tmp_path / "r" / "t" / "0"
    shutil.copytree(finished, copy)
    (copy / "checkpoints" / "step-000000000150" / "state.safetensors").write_bytes(b"torn")
    done = roboloop("eval", copy, "--episodes", 1, "--checkpoint", "all", "--name", "mine")
    assert "is damaged" in done.stdout
    whole = [step for step in steps(finished / "checkpoints") if step != 150]
    assert [p.name for p in sorted((copy / "eval").glob("mine-*.jsonl"))] == [
        f"mine-step-{s:012d}.jsonl" for s in whole
    ]
    assert [json.loads(line)["step"] for line in (copy / "eval.jsonl").read_text().splitlines()] == whole
    refused = roboloop("eval", copy, "--checkpoint", "all", "--video")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_training_without_evaluation_says_how_to_evaluate_it(tmp_path):
    done = roboloop("train", *TINY, "--eval.episodes", 0, "--steps", 60, "--experiment", "n", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "n" / "InvertedPendulum-v5" / "0"
    assert f"not evaluated yet: roboloop eval {path} --checkpoint all" in done.stdout
    assert "nan" not in done.stdout


def test_plot_overlays_runs(finished, tmp_path):
    done = roboloop("plot", finished, finished.parents[1], "--out", tmp_path / "c.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_export_writes_a_policy_and_its_contract_once(finished, tmp_path):
    pytest.importorskip("onnxruntime")
    done = roboloop("export", finished, "--onnx", tmp_path / "p.onnx", "--checkpoint", "last")
    assert done.returncode == 0, done.stderr
    assert "sac policy of step 200" in done.stdout
    assert json.loads((tmp_path / "p.json").read_text())["policy"]["checkpoint_step"] == 200
    again = roboloop("export", finished, "--onnx", tmp_path / "p.onnx")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)


def test_fork_goes_on_from_an_old_checkpoint_under_a_new_name(finished):
    flags = ["--experiment", "forked", "--steps", 150, "--algo.actor-lr", 1e-4]
    done = roboloop("train", "--fork", finished, "--at", 100, *flags)
    assert done.returncode == 0, done.stderr
    assert "resumed at step 100" in done.stdout


@pytest.mark.parametrize("verb", ["train", "sweep"])
@pytest.mark.parametrize(("flags", "said"), [
    (["--runs-dir", "{file}"], "Not a directory"),
    (["--runs-dir", "/proc/x"], "No such file or directory"),
    (["--runs-dir", "{file}s/" + "a" * 300], "File name too long"),
    (["--{name}", "a" * 300, "--runs-dir", "{file}s"], "File name too long"),
])  # fmt: skip
def test_a_place_where_no_run_can_be_is_one_line(tmp_path, verb, flags, said):
    file = tmp_path / "file"
    file.touch()
    name = {"train": "experiment", "sweep": "name"}[verb]
    done = roboloop(verb, *TINY, *(flag.format(file=file, name=name) for flag in flags))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def test_a_fork_whose_nets_do_not_fit_leaves_no_trace(finished):
    done = roboloop("train", "--fork", finished, "--at", 100, "--experiment", "other", "--algo.hidden", 7, 7)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not finished.parents[1].with_name("other").exists()


def test_resume_may_extend_but_not_rewrite_the_past(finished):
    done = roboloop("train", "--resume", finished, "--algo.gamma", 0.9)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--fork" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_checkpoints_and_exits_clean(tmp_path, number):
    args = [*TINY, "--steps", "100000", "--experiment", "s", "--runs-dir", str(tmp_path)]
    command = [sys.executable, "-m", "roboloop.cli", "train", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path = tmp_path / "s" / "InvertedPendulum-v5" / "0"
    while process.poll() is None and not list(path.glob("checkpoints/step-*")):
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert f"roboloop train --resume {path}" in out
    assert err == ""
    status = json.loads((path / "status.json").read_text())
    assert status["state"] == "stopped"
    assert (path / "checkpoints" / f"step-{status['step']:012d}").is_dir()


def test_bare_resume_starts_a_run_and_goes_on_with_it(tmp_path):
    args = [*TINY, "--experiment", "b", "--runs-dir", tmp_path, "--resume"]
    assert roboloop("train", *args).returncode == 0
    again = roboloop("train", *args)
    assert again.returncode == 0
    assert "finished" in again.stdout
    other = roboloop("train", *args, "--algo.gamma", 0.5)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1), other.stderr
    assert "'algo.gamma' cannot change in a resumed run" in other.stderr


def test_recipes_are_listed_and_all_are_valid():
    done = roboloop("recipes")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(names())
    from roboloop.core.config import override
    from roboloop.run.config import Experiment
    from roboloop.run.recipes import load

    for name in names():
        assert load(name)["experiment"] == name
        config = override(Experiment(), load(name))
        override(config, {"dataset": "given by the user"} if config.is_offline else {}).check()
    assert "experiment: reach" in roboloop("recipes", "reach").stdout


def test_scripted_experts_are_policies():
    done = roboloop("eval", "--expert", "metaworld/reach-v3", "--episodes", 2)
    assert "success 100%" in done.stdout, done.stderr


def test_an_expert_has_a_name_where_there_are_several_and_the_environment_its_keys():
    done = roboloop("eval", "--expert", "soft/seam-3:random", "--episodes", 1, "--env.observe=pixels")
    assert done.returncode == 0, done.stderr
    assert "over 1 episodes" in done.stdout
    refused = roboloop("eval", "--expert", "soft/rope-straighten:end", "--episodes", 1)
    assert refused.returncode == 2
    assert "did you mean 'ends'?" in refused.stderr
    loose = roboloop("eval", "--expert", "soft/seam-3", "--env.observe", "pixels")
    assert "--expert takes no run, got pixels (config keys: --env.KEY=VALUE)" in loose.stderr


DIRECTORY = Path(__file__).parents[2] / "benchmarks"
BENCHMARKS = [p.stem.replace("_", "-") for p in DIRECTORY.glob("[!_]*.py")]


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_says_what_it_measures(name):
    assert "usage:" in roboloop("bench", name, "--help").stdout


def test_envs_and_doctor_and_bench_answer():
    assert "metaworld/reach-v3" in roboloop("envs").stdout
    assert "sac" in roboloop("bench").stdout
    done = roboloop("doctor")
    assert done.returncode == 0, done.stderr
    assert "steps/s" in done.stdout
    assert "frames of 64x64 a second" in done.stdout


@pytest.mark.parametrize(("backend", "code"), [("bogus", 2), ("glfw", 0)])
def test_doctor_survives_a_backend_that_cannot_draw_and_says_what_each_of_them_does(backend, code):
    done = roboloop("doctor", MUJOCO_GL=backend, DISPLAY=":99")
    assert (done.returncode, done.stderr) == (code, "")
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert {"egl", "osmesa", "glfw"} <= said.keys()
    assert said["glfw"] == "X11: Failed to open display :99"
    assert said["pictures"].startswith(f"none, MUJOCO_GL={backend} cannot be used: ")
    assert ("steps/s, no pictures" in said["metaworld"]) == (code == 0)


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train", "raech"], "did you mean 'reach'?"),
        (["train", "reach", "--algo.lr", "1"], "did you mean '--algo.actor-lr' or '--algo.critic-lr'"),
        (["train", "--lr", "1"], "did you mean '--algo.actor-lr' or '--algo.critic-lr'"),
        (["train", "--overwite"], "did you mean '--overwrite'?"),
        (["train", "--help-al"], "did you mean '--help-all'?"),
        (["sweep", "--algo", "ppo"], "did you mean '--algo.name'?"),
        (["train", "--at", "5"], "fork=RUN and at=STEP belong together: --fork RUN --at STEP"),
        (["train", "--resume", "x", "--overwrite"], "overwrite starts over, resume and fork go on"),
        (["train", "--fork", "x", "--at", "5", "--overwrite"], "overwrite starts over, resume and fork go on"),
        (["train", "reach", "--resume", "x"], "resume and fork take a run and keys to change: no recipe"),
        (["train", "--algo", "ppo", "--fork", "x", "--at", "5"], "no recipe, no config, no algo"),
        (["train", "--sed", "1"], "did you mean '--seed'?"),
        (["train", "--seed", "one"], "--seed"),
        (["train", "--env", "metaworld/reech-v3"], "did you mean 'reach-v3'?"),
        (["train", "--env", "metawolrd/reach-v3"], "did you mean 'metaworld'?"),
        (["train", "--env", "gym/HalfCheeta-v5"], "HalfCheetah-v5"),
        (["train", "--env", "dmc/walker-wolk"], "walker-walk"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["train", "--resume", "runs/nothing"], "is not a run directory"),
        (["train", "--algo.batch-size", "0"], "batch_size"),
        (["eval", "runs/nothing"], "is not a run directory"),
        (["eval"], "needs a run directory"),
        (["eval", "x", "--epsiodes", "3"], "did you mean '--episodes'?"),
        (["plot", "nowhere"], "nowhere"),
        (["runs", "nowhere"], "no runs under nowhere"),
        (["bench", "sax"], "unknown benchmark"),
        (["recipes", "raech"], "did you mean 'reach'?"),
        (["rig"], "env"),
        (["rig", "panda/reech", "--port", "0"], "did you mean 'reach'?"),
        (["rig", "metaworld/reach-v3"], "is no rig"),
        (["rig", "panda/reach", "--prot", "1"], "did you mean '--port'?"),
        (["rig", "panda/reach", "--port", "70000"], "--port"),
        (["rig", "panda/reach", "--env.panda.watchdog", "1"], "did you mean '--env.panda.watchdog-s'?"),
        (["runs", "--watch", "0"], "--watch"),
        (["sweep", "cartpole", "--axis", "algo.lrr", "1e-3"], "did you mean 'algo.lr'?"),
        (["sweep", "cartpole", "--axis", "algo.lr", "1e-3", "--axs"], "did you mean '--axis'?"),
        (["sweep", "cartpole", "--axis", "algo.lr"], "--axis algo.lr needs values"),
        (["sweep", "cartpole", "--seed", "1"], "--seeds"),
        (["sweep", "cartpole", "--trials", "3"], "--search optuna"),
        (["sweep", "cartpole", "--slots", "0"], "at least 1"),
        (["sweep", "raech"], "did you mean 'reach'?"),
        (["sweep", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["stop", "nowhere"], "no runs at nowhere"),
        (["requeue", "nowhere"], "nowhere is no run"),
        (["tail", "nowhere"], "there is no such run"),
        (["train", "--env", "panda/reach", *AT_NOWHERE], "nobody answers on 127.0.0.1:9"),
        (["train", "--env", "panda/reach", "--env.panda.address", "nuc:7317"], "127.0.0.1:PORT"),
    ],
)
def test_bad_input_is_one_line_with_the_nearest_right_name(args, hint, tmp_path):
    done = roboloop(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_missing_simulator_names_the_extra_to_install(tmp_path):
    # an import hook that hides the package, as in a venv without it
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'dm_control':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    args = ["train", "--env", "dmc/walker-walk", "--runs-dir", str(tmp_path / "r")]
    done = subprocess.run(
        [sys.executable, "-m", "roboloop.cli", *args], capture_output=True, text=True, check=False, env=env
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'roboloop[dmc]'" in done.stderr
