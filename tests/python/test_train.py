"""``rl.train`` does what ``roboloop train`` does, with the same bits, in any thread and any number of times."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import roboloop as rl
from roboloop.core.processes import family
from tests.cli.test_cli import roboloop
from tests.own import open_files
from tests.python.kit import SMALL, small, weights
from tests.python.own_env import Needy, Steer, nothing, pendulum

FLAGS = (
    "--env", "tiny/point", "--steps", "300", "--warmup-steps", "60", "--log-every-steps", "50", "--trackers",
    "--algo.hidden", "16", "16", "--algo.batch-size", "16", "--algo.processes", "1", "--replay.capacity", "2000",
    "--eval.every-steps", "150", "--eval.episodes", "2", "--checkpoint.every-steps", "100", "--checkpoint.every-s", "0",
)  # fmt: skip


def test_python_the_shell_and_a_second_run_in_one_process_give_the_same_bits(tmp_path):
    torch.set_num_threads(2)  # as a fresh process has it
    first = rl.train(**small(tmp_path / "a"))
    np.random.rand(3), torch.rand(3)
    second = rl.train(**small(tmp_path / "b"))
    assert torch.get_num_threads() == 2
    done = roboloop("train", *FLAGS, "--runs-dir", tmp_path / "c" / "runs")
    assert done.returncode == 0, done.stderr
    shell = rl.Run(tmp_path / "c" / "runs")
    assert weights(first) == weights(second) == weights(shell)
    logs = {(run.path / "metrics.jsonl").read_bytes() for run in (first, second, shell)}
    assert len(logs) == 1
    assert first.config.algo == shell.config.algo


def test_the_shared_random_streams_are_as_they_were(tmp_path):
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    rl.train(**small(tmp_path, steps=100))
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_the_run_remembers_a_command_that_does_the_same(tmp_path):
    run = rl.train(**small(tmp_path, steps=100))
    words = json.loads((run.path / "meta.json").read_text())["command"]
    assert words[:2] == ["roboloop", "train"]
    done = roboloop(*words[1:], "--experiment", "again")
    assert done.returncode == 0, done.stderr
    assert weights(rl.Run(tmp_path / "runs" / "again")) == weights(run)


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path):
    whole = rl.train(**small(tmp_path / "a"))
    part = rl.train(**small(tmp_path / "b", steps=200))
    assert (part.status, part.step) == ("done", 200)
    assert weights(part.resume(steps=300, quiet=True)) == weights(whole)
    assert rl.train(**small(tmp_path / "b"), resume=True).path == part.path  # is finished: nothing is done


def test_resume_true_begins_where_there_is_no_run(tmp_path):
    assert rl.train(**small(tmp_path, steps=100), resume=True).step == 100


def test_a_fork_begins_at_a_checkpoint_of_another_run(tmp_path):
    run = rl.train(**small(tmp_path))
    fork = run.fork(200, experiment="fork", algo={"actor_lr": 1e-3}, quiet=True)
    assert (fork.config.experiment, fork.config.algo.actor_lr, fork.step) == ("fork", 1e-3, 300)
    assert len(fork.metrics()["step"]) == len(run.metrics()["step"])
    words = json.loads((fork.path / "meta.json").read_text())["command"]
    assert words[:6] == ["roboloop", "train", "--fork", str(run.path), "--at", "200"]


def test_a_run_of_the_same_name_is_left_alone_unless_it_may_be_overwritten(tmp_path):
    rl.train(**small(tmp_path, steps=100))
    with pytest.raises(rl.RunExists, match="is finished"):
        rl.train(**small(tmp_path, steps=100))
    run = rl.train(**small(tmp_path, steps=100), overwrite=True)
    assert run.step == 100
    assert [each.path for each in rl.runs(tmp_path / "runs")] == [run.path]
    assert rl.Run(run.path.with_name("0.old-1")).step == 100  # the old one stands aside


def test_an_experiment_is_a_record_that_can_be_trained(tmp_path):
    config = rl.experiment("reach", env="tiny/point", seed=3, **{"algo.hidden": (16, 16), "eval.episodes": 2})
    assert isinstance(config, rl.Experiment)
    assert (config.env.id, config.algo.hidden, config.seed) == ("tiny/point", (16, 16), 3)
    run = rl.train(config, steps=np.int64(100), runs_dir=tmp_path / "runs", trackers=[], quiet=True)
    assert run.config.seed == 3
    assert run.status == "done"
    words = json.loads((run.path / "meta.json").read_text())["command"]
    assert words[words.index("--algo.hidden") + 1 :][:2] == ["16", "16"]


def test_a_config_file_is_given_by_its_path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("env: {id: tiny/point}\nseed: 5\n")
    assert rl.experiment(file).seed == rl.experiment(str(file)).seed == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "reech"}, "unknown recipe 'reech'; did you mean 'reach'"),
        ({"step": 3}, "unknown config key 'step'; did you mean 'steps'"),
        ({"lr": 1e-3}, "unknown config key 'lr'; did you mean 'algo.actor_lr'"),
        ({"algo": {"gama": 0.9}}, "unknown config key 'algo.gama'; did you mean 'algo.gamma'"),
        ({"algo": "sacc"}, "unknown algorithm 'sacc'; did you mean 'sac'"),
        ({"algo": {"gamma": 0.9}, "algo.gamma": 0.8}, "'algo.gamma' is given twice"),
        ({"env": "metaworld/reach-v9"}, "did you mean 'reach-v3'"),
        ({"env": Steer()}, "env must be an id, a class or a function"),
        ({"env": Needy}, "missing a required argument: 'size'"),
        ({"env": nothing}, "returned a int, not a gymnasium.Env"),
        ({"env": "gym/tests.python.own_env:Stear"}, "did you mean 'Steer'"),
        ({"env": lambda: Steer(), "sample": {"workers": 1}}, "leave sample.workers at its default"),
        ({"fork": "runs"}, "fork=RUN and at=STEP"),
        ({"resume": True, "overwrite": True}, "choose one"),
        ({"resume": "nowhere/at/all"}, "is not a run directory"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path, arguments, message):
    with pytest.raises(rl.UserError) as raised:
        rl.train(**{"runs_dir": tmp_path / "runs", "quiet": True, "steps": 100, **arguments})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_an_error_gives_the_lock_back_even_while_its_traceback_is_kept(tmp_path):
    run = rl.train(**small(tmp_path, steps=100))
    with pytest.raises(rl.ConfigError, match="cannot change in a resumed run") as kept:
        run.resume(seed=4, quiet=True)
    assert run.resume(steps=150, quiet=True).step == 150
    assert kept.traceback


def test_a_class_of_a_module_trains_with_workers_and_resumes_from_the_shell(tmp_path):
    run = rl.train(**small(tmp_path, env=Steer, steps=200, sample={"workers": 1}))
    assert run.config.env.id == "gym/tests.python.own_env:Steer"
    done = roboloop("train", "--resume", run.path, "--steps", "300", "--trust", **HERE)
    assert done.returncode == 0, done.stderr
    whole = rl.train(**small(tmp_path / "whole", env="gym/tests.python.own_env:Steer"))
    assert weights(run) == weights(whole)
    assert roboloop("train", "--resume", run.path, "--steps", "400", **HERE).returncode == 2  # nobody vouches


def test_a_function_keeps_the_limit_of_what_it_makes(tmp_path):
    run = rl.train(**small(tmp_path, env=pendulum, steps=100))
    assert np.nanmax(run.metrics()["train/length"]) == 25


def test_a_class_of_a_notebook_trains_and_resumes_with_the_class_given_again(tmp_path):
    class Mine(Steer):
        pass

    whole = rl.train(**small(tmp_path / "whole", env=Mine))
    part = rl.train(**small(tmp_path, env=Mine, steps=200))
    assert part.config.env.id == "gym/__main__:Mine"
    with pytest.raises(rl.ConfigError, match=r"can be made only there: give env= in Python"):
        rl.train(resume=part.path, steps=300, quiet=True)
    shell = roboloop("train", "--resume", part.path, "--steps", "300")
    assert (shell.returncode, shell.stderr.count("\n")) == (2, 1)
    assert "give env= in Python" in shell.stderr
    again = rl.train(resume=part.path, env=lambda: Mine(), steps=300, quiet=True)
    assert weights(again) == weights(whole)
    assert rl.load(again).act(np.zeros(2)).shape == (2,)
    assert rl.evaluate(rl.Run(part.path, env=Mine), episodes=2).episodes == 2
    with pytest.raises(rl.ConfigError, match="give env= in Python"):
        rl.load(part.path)


def test_another_class_of_a_notebook_is_another_environment(tmp_path):
    class Cell(Steer):
        pass

    class Other(Steer):
        pass

    run = rl.train(**small(tmp_path, env=Cell, steps=80))
    assert rl.evaluate(run, episodes=2, name="own").episodes == 2
    with pytest.raises(rl.ConfigError, match=r"'env.id' cannot change .* from 'gym/__main__:Cell' to 'gym/__main__:O"):
        run.resume(env=Other, steps=90, quiet=True)
    assert rl.evaluate(run, episodes=2, env=Other, name="other").episodes == 2
    files = {path.name: path.read_text().splitlines()[0] for path in (run.path / "eval").glob("*.jsonl")}
    assert {name: [each in text for each in ("Cell", "Other")] for name, text in files.items()} == {
        "own.jsonl": [True, False], "other-__main__-Other.jsonl": [False, True],
    }  # fmt: skip


def test_code_that_a_runs_files_name_is_not_used_unless_the_caller_says_so(tmp_path):
    run = rl.train(
        **small(
            tmp_path, algo={"name": "tests.python.own_algo:SPEC", "batch_size": 16}, env="gym/Pendulum-v1", steps=80
        )
    )
    assert run.policy("last").act(np.zeros(3)).shape == (1,)  # named in this call's own run
    with pytest.raises(rl.DataError, match="trust=True"):
        rl.load(run.path)
    assert rl.load(rl.Run(run.path, trust=True), "last").act(np.zeros(3)).shape == (1,)
    with pytest.raises(rl.DataError, match="trust=True"):
        rl.train(resume=run.path, steps=90, quiet=True)
    assert rl.train(resume=run.path, steps=90, quiet=True, trust=True).policy("last").act(np.zeros(3)).shape == (1,)


def own_files() -> int:
    """Return how many files are open; Matplotlib keeps its fonts open, for each thread."""
    return sum(not name.endswith(".ttf") for name in open_files(os.getpid()))


def test_training_in_a_thread_leaves_no_process_thread_or_file_and_no_other_bits(tmp_path):
    here = rl.train(**small(tmp_path / "a", sample={"workers": 1}, algo={**SMALL["algo"], "processes": 2}))
    before = family(os.getpid()), threading.active_count(), own_files()
    found = []
    arguments = small(tmp_path / "b", sample={"workers": 1}, algo={**SMALL["algo"], "processes": 2})
    thread = threading.Thread(target=lambda: found.append(rl.train(**arguments)))
    thread.start()
    thread.join()
    assert (family(os.getpid()), threading.active_count(), own_files()) == before
    assert weights(found[0]) == weights(here)


def test_two_trainings_side_by_side_have_the_bits_of_each_alone(tmp_path):
    torch.set_num_threads(2)
    alone = [rl.train(**small(tmp_path / "alone", seed=seed)) for seed in (0, 1)]
    beside = {}
    threads = [
        threading.Thread(target=lambda s=seed: beside.update({s: rl.train(**small(tmp_path / "beside", seed=s))}))
        for seed in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [weights(beside[seed]) for seed in (0, 1)] == [weights(run) for run in alone]
    assert torch.get_num_threads() == 2


def test_a_training_that_fails_ends_its_processes(tmp_path):
    before = family(os.getpid())
    with pytest.raises(rl.ConfigError, match="observer"):
        rl.train(**small(tmp_path, sample={"workers": 1}, observers=["tests.python.own_env:Nobody"]))
    assert family(os.getpid()) == before


def test_an_event_stops_a_training_in_a_thread_which_then_goes_on(tmp_path):
    stop, found = threading.Event(), []
    arguments = small(tmp_path, steps=100_000, stop=stop)
    thread = threading.Thread(target=lambda: found.append(rl.train(**arguments)))
    thread.start()
    while not (rl.runs(tmp_path / "runs") and (rl.runs(tmp_path / "runs")[0].path / "metrics.jsonl").exists()):
        time.sleep(0.05)
    stop.set()
    thread.join()
    assert found[0].status == "stopped"
    step = found[0].step
    assert found[0].checkpoints[-1] == step
    assert found[0].resume(steps=step + 20, quiet=True).step == step + 20


HERE = {"PYTHONPATH": str(Path(__file__).parents[2])}
"""Where a child process finds the modules of these tests."""
SCRIPT = """
import os, signal, sys, threading
import roboloop as rl
from tests.python.kit import small
from pathlib import Path
folder = Path(sys.argv[1])
def interrupt():
    while not list(folder.glob("runs/*/*/*/checkpoints/step-*")): threading.Event().wait(0.05)
    os.kill(os.getpid(), signal.SIGINT)
before = signal.getsignal(signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    rl.train(**small(folder, steps=100_000))
except KeyboardInterrupt as stopped:
    print(type(stopped).__name__, stopped.run.status, stopped.run.checkpoints[-1] == stopped.run.step)
assert signal.getsignal(signal.SIGINT) is before
"""


def test_ctrl_c_saves_a_checkpoint_and_raises_with_the_run(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | HERE)
    assert done.stdout.strip() == "Interrupted stopped True", done.stderr


def test_without_a_standard_output_training_is_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert rl.train(**{**small(tmp_path, steps=100), "quiet": False}).status == "done"


def test_progress_goes_to_the_standard_output_of_the_moment(tmp_path, capsys):
    before = signal.getsignal(signal.SIGINT)
    rl.train(**{**small(tmp_path, steps=100), "quiet": False})
    assert "done at step 100" in capsys.readouterr().out
    rl.train(**small(tmp_path / "quiet", steps=100))
    assert not capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before
