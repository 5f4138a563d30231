"""From training with a recorder to an evaluated Decision Transformer, as a user types it."""

import json

import pytest

from tests.cli.test_cli import roboloop

PPO = (
    "train --algo ppo --env gym/CartPole-v1 --env.num-envs 4 --steps 512 --algo.rollout-steps 32 --algo.processes 1"
    " --eval.every-steps 0 --eval.episodes 2 --record.keep stratified --record.budget-mb 5 --record.min-free-mb 0"
).split()
SMALL = (
    "--steps 20 --log-every-steps 10 --eval.every-steps 10 --eval.episodes 2 --checkpoint.every-steps 10"
    " --algo.processes 1 --algo.batch-size 8"
).split()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("offline")
    done = roboloop(*PPO, "--experiment", "source", "--runs-dir", root)
    assert done.returncode == 0, done.stderr
    return root / "source" / "CartPole-v1" / "0"


def test_a_recorded_run_becomes_a_decision_transformer_that_is_evaluated_at_several_targets(recorded, tmp_path):
    done = roboloop("train", "dt", "--dataset", recorded, "--target", 30, "--runs-dir", tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "dt" / "CartPole-v1" / "0"
    done = roboloop("eval", run, "--episodes", 2, "--target", 10, 30)
    assert done.returncode == 0, done.stderr
    assert "asked for a return of 10" in done.stdout
    assert len(list((run / "eval").glob("*-target*.summary.json"))) == 2
    pytest.importorskip("onnxruntime")
    done = roboloop("export", run, "--onnx", tmp_path / "p.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    memory = json.loads((tmp_path / "p.json").read_text())["memory"]
    assert (memory["input"], memory["output"], memory["reward"]) == ("memory", "memory_after", "reward_so_far")


def test_the_best_tenth_is_cloned(recorded, tmp_path):
    done = roboloop("train", "bc", "--dataset", recorded, "--top-percent", 10, "--runs-dir", tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    pytest.importorskip("onnxruntime")
    done = roboloop("export", tmp_path / "bc" / "CartPole-v1" / "0", "--onnx", tmp_path / "p.onnx")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.json").exists()


def test_what_cannot_be_learned_from_is_one_line_and_exit_code_2(recorded, tmp_path):
    for args, said in (
        (["train", "dt", "--runs-dir", tmp_path], "--dataset"),
        (["train", "dt", "--dataset", tmp_path / "nothing", "--runs-dir", tmp_path], "is not a dataset"),
        (["eval", recorded, "--target", "3"], "--target is for Decision Transformers"),
    ):
        done = roboloop(*args)
        assert done.returncode == 2, (args, done.stdout, done.stderr)
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
