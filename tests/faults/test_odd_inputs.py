"""Odd numbers, texts and names in configs, flags and checkpoints are one line and exit code 2; thousands of them:
``roboloop bench input-fuzz``.
"""

import hashlib
import json
import os

import numpy as np
import pytest
import yaml
from safetensors.numpy import load, save

from roboloop.cli import main
from roboloop.core.errors import DataError
from roboloop.core.sealed import seal_text
from roboloop.envs.frozen import FrozenPolicy
from tests.run.helpers import train

ENV = "--env gym/Pendulum-v1 --env.max-episode-steps 20 --env.eval-max-episode-steps 20 --trackers".split()


def one_line(capsys, code):
    """Check that a command said one line; return it."""
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--eval.seed -1", "'eval.seed' must not be negative: -1"),
        ("--algo ppo --algo.batch-envs 1000000000000000000", "'algo.batch_envs' must lie between"),
        ("--algo.reward-scale inf", "'algo.reward_scale' must be a finite number, not inf"),
        ("--algo.gamma nan", "'algo.gamma' must be a finite number, not nan"),
        ("--update.per-step inf", "update.per_step .inf is for update.at 'slack'"),
        ("--algo.num-critics 1000000000", "num_critics must be at most 1000"),
        ("--algo.n-step 9223372036854775808", "'algo.n_step' must lie between -9007199254740992 and 9007199254740992"),
        ("--algo.n-step 1000000000", "n_step must be at most 10000"),
        ("--algo.hidden 1000000000000", "hidden may have 1000 layers of 1000000 units"),
        ("--env.frame-stack 1000000000", "env.frame_stack must be at most 1000"),
        ("--env.eval-max-episode-steps 1000000000", "env.eval_max_episode_steps must be at most 10000000"),
        ("--sample.workers 1000000000 --sample.groups 1", "sample.workers 1000000000 is more than sample.groups 1"),
        ("--device cuda:99", "'device' must be one that is here, not 'cuda:99'"),
        ("--device cuda", "'device' must be one that is here, not 'cuda'"),
        ("--device gpu", "'device' must be cpu, cuda or another device of torch, not 'gpu'"),
        ("--device meta", "'device' must be one that is here, not 'meta'"),
        ("--experiment \x1b[31mred", "'experiment' must be text without control characters, not '\\x1b[31mred'"),
        ("--experiment \udcff", "'experiment' must be text without control characters"),
    ],
)
def test_a_value_beyond_all_use_names_its_key_and_its_bound(tmp_path, capsys, flags, said):
    assert said in one_line(capsys, main(["train", *ENV, "--runs-dir", str(tmp_path), *flags.split(" ")]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("algo.name", [], "'algo.name' must be a name"),
        ("algo.num_critics", 1e300, "'algo.num_critics' must lie between"),
        ("algo.n_step", 2**63, "'algo.n_step' must lie between"),
        ("algo.batch_size", 10**400, "'algo.batch_size' must lie between"),
        ("algo.reward_scale", float("inf"), "'algo.reward_scale' must be a finite number"),
        ("eval.seed", -1, "'eval.seed' must not be negative"),
        ("experiment", "a\0b", "'experiment' must be text without control characters"),
    ],
)
def test_the_config_of_a_run_is_checked_like_one_that_is_typed(tiny, capsys, key, value, said):
    path = train(tiny(), crash_after=150)
    data = yaml.safe_load((path / "config.yaml").read_text())
    section, _, name = key.rpartition(".")
    (data[section] if section else data)[name] = value
    (path / "config.yaml").write_bytes(seal_text(yaml.safe_dump(data, sort_keys=False)))
    for words in (["train", "--resume", str(path)], ["eval", str(path)], ["export", str(path), "--onnx", "out.onnx"]):
        capsys.readouterr()
        assert said in one_line(capsys, main(words))


def test_a_config_file_with_control_characters_is_one_line(tmp_path, capsys):
    (tmp_path / "c.yaml").write_bytes(b"seed: 1\nexperiment: a\0b\n")
    assert "is not valid" in one_line(capsys, main(["train", "--config", str(tmp_path / "c.yaml")]))


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_report_that_is_no_name_of_a_file_is_one_line(tiny, capsys, name):
    path = train(tiny(), crash_after=150)
    assert "is no name of a file" in one_line(capsys, main(["report", str(path), "--save", name]))


def test_memory_that_is_not_there_is_one_line(tmp_path, capsys, monkeypatch):
    def none_left(*args):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("roboloop.run.build.spec_of", none_left)
    assert "not enough memory" in one_line(capsys, main(["train", *ENV, "--runs-dir", str(tmp_path)]))


def test_weights_that_are_not_finite_end_an_evaluation_with_one_line(tiny, capsys):
    path = train(tiny(), crash_after=150)
    for point in (path / "checkpoints").iterdir():
        tensors = {name: np.array(value) for name, value in load((point / "state.safetensors").read_bytes()).items()}
        for name, value in tensors.items():
            if name.startswith("algo.policy") and value.dtype == np.float32:
                value.fill(np.nan)
        reseal(point, save(tensors))
    code = main(["eval", str(path), "--episodes", "1", "--checkpoint", "last"])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (6, 1), said
    assert "not finite" in said


def reseal(point, blob):
    """Change the tensors of a checkpoint, and its digests with them: a stranger can compute those too."""
    body = json.loads((point / "manifest.json").read_text())["body"]
    body["files"]["state.safetensors"] = hashlib.sha256(blob).hexdigest()
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (point / "state.safetensors").write_bytes(blob)
    (point / "manifest.json").write_text(json.dumps({"sha256": digest, "body": body}))


def test_a_frozen_policy_is_a_regular_file_of_bounded_size_and_depth(tmp_path):
    path = tmp_path / "p.safetensors"
    os.mkfifo(path)
    with pytest.raises(DataError):
        FrozenPolicy.load(path)
    path.unlink()
    path.touch()
    os.truncate(path, 20 << 30)
    with pytest.raises(DataError, match="more than the"):
        FrozenPolicy.load(path)
    path.write_bytes(save({"x": np.zeros(1, np.float32)}, {"roboloop": "[" * 100_000}))
    with pytest.raises(DataError, match="damaged or no frozen policy"):
        FrozenPolicy.load(path)
