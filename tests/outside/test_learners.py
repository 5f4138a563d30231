"""TD3, TQC and CrossQ: one short file each, and all that the house does for them."""

import dataclasses
import json
from pathlib import Path

import pytest
from outside.crossq import CrossQ, CrossQConfig
from outside.td3 import TD3, TD3Config
from outside.tqc import TQC, TQCConfig

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.policy import UniformPolicy
from roboloop.core.config import override
from roboloop.core.errors import DataError
from roboloop.core.vouched import vouched
from roboloop.data.replay import Replay
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run import trust
from roboloop.run.config import Experiment
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler
from tests.cli.test_cli import roboloop
from tests.outside import kit
from tests.outside.kit import TWO_WORKERS, digest

ROOT = Path(__file__).parents[2]
POINT = EnvConfig(id="tiny/point")
SMALL = {"hidden": (32, 32), "batch_size": 64, "gamma": 0.9, "processes": 1}
LEARNERS = {
    "td3": (TD3, dataclasses.replace(TD3Config(), actor_lr=3e-3, critic_lr=3e-3, explore_noise=0.3, **SMALL)),
    "tqc": (TQC, dataclasses.replace(TQCConfig(), lr=3e-3, num_critics=2, **SMALL)),
    "crossq": (CrossQ, dataclasses.replace(CrossQConfig(), lr=3e-3, critic_hidden=(64, 64), policy_delay=1, **SMALL)),
}
TINY = {
    "tqc": ("--algo.hidden", "16", "16", "--algo.num-critics", "2"),
    "crossq": ("--algo.hidden", "16", "16", "--algo.critic-hidden", "16", "16"),
}


def train(root: Path, algo: str, *words: object) -> Path:
    short = ("--env", "gym/Pendulum-v1", "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40")
    few = ("--algo", algo, "--algo.batch-size", "16", *TINY[algo])
    return kit.train(root, "Pendulum-v1", *few, *short, *kit.SMALL, *words)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_is_one_file_of_at_most_150_lines(name):
    assert len((ROOT / f"examples/outside/outside/{name}.py").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", LEARNERS)
def test_it_steers_the_point_to_its_goal(name):
    kind, cfg = LEARNERS[name]
    sampler = SerialSampler(lambda _: make(POINT), plans(4, 1, seed=0), RolloutShape(make(POINT).spec, 1, 4, 1))
    algo = ReplayLearner(kind, cfg, sampler.spec, 1, seed=0)
    store = Replay(20_000, sampler.spec, 4, algo.needs, seed=0)
    evaluator = Evaluator(lambda _: make(POINT), 1, lanes=10)
    before = evaluator.run(algo.policy, Plan(20, 0, TEST))
    for _ in range(50):
        store.add(sampler.collect(UniformPolicy(sampler.spec)))
    for _ in range(2000 if name == "crossq" else 800):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    after = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert after.success >= 0.95
    assert after.episode_return > before.episode_return / 2


@pytest.mark.parametrize("algo", TINY)
def test_resumed_and_alone_is_never_stopped_and_with_workers_and_its_policy_is_evaluated_and_exported(algo, tmp_path):
    whole = train(tmp_path / "whole", algo, "--steps", "300", *TWO_WORKERS)
    alone = ("--sample.workers", "0", "--algo.processes", "1")
    part = train(tmp_path / "part", algo, "--steps", "150", *TWO_WORKERS, *alone)
    assert roboloop("train", "--resume", part, "--steps", "300").returncode == 0
    assert digest(part)[0] == digest(whole)[0]
    done = roboloop("eval", whole, "--episodes", 2)
    assert "over 2 episodes" in done.stdout
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    done = roboloop("export", whole, "--onnx", tmp_path / "policy.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads((tmp_path / "policy.json").read_text())["parity"]["max_difference"] < 1e-4


def test_a_network_of_30_lines_trains_inside_sac_by_a_flag_with_workers_and_two_processes(tmp_path):
    assert len((ROOT / "examples/outside/outside/simba.py").read_text().splitlines()) <= 30
    words = ("--algo.net", "outside.simba:residual", "--algo.hidden", "16", "16", "--algo.batch-size", "16")
    short = ("--env", "gym/Pendulum-v1", "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40")
    runs = [
        kit.train(tmp_path / str(i), "Pendulum-v1", *kit.SMALL, *short, *words, "--steps", "300", *TWO_WORKERS, *more)
        for i, more in enumerate(((), ("--sample.workers", "0", "--algo.processes", "1")))
    ]
    assert digest(runs[0]) == digest(runs[1])
    assert "over 2 episodes" in roboloop("eval", runs[0], "--episodes", 2).stdout


def test_the_same_network_trains_inside_ppo(tmp_path):
    ppo = ("--algo", "ppo", "--algo.net", "outside.simba:residual", "--algo.hidden", "16", "16")
    size = ("--algo.rollout-steps", "40", "--algo.minibatches", "2", "--algo.epochs", "2", "--steps", "320")
    short = ("--env", "gym/Pendulum-v1", "--env.max-episode-steps", "40", "--env.eval-max-episode-steps", "40")
    runs = [
        kit.train(tmp_path / str(i), "Pendulum-v1", *kit.SMALL, *short, *ppo, *size, *TWO_WORKERS, *more)
        for i, more in enumerate(((), ("--sample.workers", "0", "--algo.processes", "1")))
    ]
    assert digest(runs[0]) == digest(runs[1])
    assert "over 2 episodes" in roboloop("eval", runs[0], "--episodes", 2).stdout


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("resdual", "unknown network 'resdual'; did you mean 'residual'? (known: mlp, residual, or module:attr)"),
        ("outside.simba:residul", "algo.net 'outside.simba:residul': module outside.simba has no 'residul'"),
    ],
)
def test_a_wrong_network_is_one_line(net, message):
    done = roboloop("train", "--env", "gym/Pendulum-v1", "--algo.net", net)
    assert (done.returncode, done.stderr) == (2, f"roboloop: {message}\n")


@pytest.mark.parametrize("net", ["stranger:network", "roboloop.core.child:subprocess.run", "roboloop.api:train"])
def test_a_network_that_only_a_saved_run_names_must_be_a_plug_ins_own(net):
    saved = override(Experiment(), {"algo": {"net": "outside.simba:residual"}})
    vouched.take(["eval", "run"])
    trust.check(saved, "config.yaml")
    with pytest.raises(DataError, match=f"^config.yaml: algo.net '{net}' is neither of roboloop nor of an installed"):
        trust.check(override(saved, {"algo": {"net": net}}), "config.yaml")
