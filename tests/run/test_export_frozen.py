"""The verb ``export --frozen``: a run's policy as a file that environments can act by."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop import cli
from roboloop.envs.frozen import FrozenPolicy
from tests.run.helpers import train

PPO = {"name": "ppo", "hidden": [8], "rollout_steps": 16, "minibatches": 1, "processes": 1, "normalize_obs": True}


@pytest.fixture
def run(tiny):
    env = {"id": "tiny/cart", "num_envs": 2}
    return train(tiny(steps=96, env=env, algo=PPO, eval={"every_steps": 0}, checkpoint={"every_steps": 32}))


def export(run, *flags) -> int:
    return cli.main(["export", str(run), *map(str, flags)])


def test_a_run_is_frozen_at_any_checkpoint_with_any_deviation(run, tmp_path, capsys):
    last, first = tmp_path / "deep" / "last.safetensors", tmp_path / "first.safetensors"
    assert export(run, "--frozen", last, "--checkpoint", "last", "--std", 0.2725) == 0
    assert "ppo policy of step 96, 2 numbers to 1 actions" in capsys.readouterr().out
    assert export(run, "--frozen", first, "--checkpoint", 32) == 0
    a, b = FrozenPolicy.load(last), FrozenPolicy.load(first)
    assert a.about == {"algo": "ppo", "env": "tiny/cart", "checkpoint_step": 96}
    obs = np.ones((1, 2), np.float32)
    assert a.mean_and_std(obs)[1].item() == pytest.approx(0.2725)
    assert a.mean_and_std(obs)[0] != b.mean_and_std(obs)[0]


def test_bad_input_is_one_line(run, tmp_path, capsys):
    onnx, frozen = tmp_path / "p.onnx", tmp_path / "p.safetensors"
    for flags, said in (
        ([], "one of the arguments --onnx --frozen is required"),
        (["--onnx", onnx, "--frozen", frozen], "not allowed with"),
        (["--onnx", onnx, "--std", 1], "--std is for --frozen"),
        (["--frozen", tmp_path / "p.pt"], "must end in .safetensors"),
        (["--frozen", frozen, "--std", 0], "must be above 0"),
        (["--frozen", frozen, "--checkpoint", 77], "no checkpoint at step 77"),
    ):
        assert export(run, *flags) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    frozen.write_text("mine")
    assert export(run, "--frozen", frozen) == 2
    assert frozen.read_text() == "mine"


def test_a_policy_of_another_kind_is_refused(tiny, tmp_path, capsys):
    run = train(tiny(steps=120, eval={"every_steps": 0}))
    assert export(run, "--frozen", tmp_path / "p.safetensors") == 2
    assert "SAC cannot be frozen: only policies of PPO can" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.safetensors"))
