"""Whole runs of an environment with two cameras under names of its own (``examples/outside``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from outside.cameras import Cameras

from roboloop import cli
from roboloop.data.dataset import Dataset
from roboloop.envs import registry
from tests.run.helpers import remains, resume, train
from tests.run.test_resume import assert_same

CAMERAS = "gym/outside.cameras:Cameras-v0"
SAC: dict[str, Any] = {"batch_size": 8, "hidden": [16], "conv_channels": [4, 4, 4], "feature_dim": 8, "processes": 1}
PPO: dict[str, Any] = {
    "name": "ppo", "rollout_steps": 16, "hidden": [16], "conv_channels": [4, 4, 4], "conv_features": 8,
    "minibatches": 2, "epochs": 1, "processes": 1,
}  # fmt: skip


def changes(algo: dict[str, Any], **more: Any) -> dict[str, Any]:
    env = {"id": CAMERAS, "num_envs": 2, "max_episode_steps": None, "eval_max_episode_steps": None}
    return {
        "steps": 96, "warmup_steps": 32, "env": env, "algo": algo, "update": {"per_step": 0.25},
        "sample": {"groups": 2}, "replay": {"capacity": 80}, "eval": {"every_steps": 64, "episodes": 2},
        "checkpoint": {"every_steps": 32}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("algo", [SAC, PPO], ids=["sac", "ppo"])
def test_a_crash_leaves_no_trace_and_workers_change_no_bit(tiny, algo: dict[str, Any]) -> None:
    whole = train(tiny(experiment="whole", **changes(algo)))
    at = 40 if algo is SAC else 2
    path = train(tiny(experiment="broken", **changes(algo)), crash_after=at)
    resume(path)
    assert_same(whole, path)
    apart = train(tiny(experiment="apart", **changes(algo, sample={"groups": 2, "workers": 2})))
    assert remains(whole)["metrics"] == remains(apart)["metrics"]


@pytest.mark.parametrize("algo", [SAC, PPO], ids=["sac", "ppo"])
def test_a_run_is_evaluated_recorded_exported_and_written_in_other_formats(
    tiny, algo: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = train(tiny(**changes(algo, record={"keep": "all", "budget_mb": 50})))
    data = Dataset.open(path / "dataset")
    assert {"wrist", "front", "vector"} == set(data.episode(0).obs.dtype.names or ())
    assert data.episode(0).obs["wrist"].max() == 255
    data.close()
    assert cli.main(["eval", str(path), "--episodes", "2", "--trust"]) == 0
    assert cli.main(["record", str(path), "--episodes", "2", "--trust"]) == 0
    sheet = tmp_path / "sheet.png"
    assert cli.main(["dataset", "info", str(path / "recorded"), "--sheet", str(sheet)]) == 0
    assert sheet.stat().st_size > 0
    for kind in ("npz", "lerobot"):
        assert cli.main(["dataset", "export", str(path / "recorded"), str(tmp_path / kind), "--format", kind]) == 0
    back = ["dataset", "import", str(tmp_path / "npz"), str(tmp_path / "back"), "--format", "npz", "--trust"]
    assert cli.main(back) == 0
    first, second = Dataset.open(path / "recorded"), Dataset.open(tmp_path / "back")
    assert first.episode(0).obs.tobytes() == second.episode(0).obs.tobytes()
    first.close()
    second.close()
    pytest.importorskip("onnxruntime")
    assert cli.main(["export", str(path), "--onnx", str(tmp_path / "policy.onnx"), "--trust"]) == 0
    assert "parity with ours over 64 steps" in capsys.readouterr().out


class Zoomed(Cameras):
    """Pictures of a size that may change between training and use."""

    size: ClassVar[list[int]] = [64]

    def __init__(self) -> None:
        box = spaces.Box(0, 255, (self.size[0], self.size[0], 3), np.uint8)
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "zoom": box})

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return {**obs, "zoom": np.zeros((self.size[0], self.size[0], 3), np.uint8)}, info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {**obs, "zoom": np.zeros((self.size[0], self.size[0], 3), np.uint8)}, *rest


@pytest.mark.parametrize("algo", [SAC, PPO], ids=["sac", "ppo"])
def test_pictures_of_another_size_than_in_training_are_refused_in_one_line(
    tiny, algo: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(**changes(algo, steps=64))
    path = train(replace(config, env=registry.config("gym/tests.run.test_cameras:Zoomed", num_envs=2)))
    monkeypatch.setattr(Zoomed, "size", [84])
    for words in (["eval", str(path), "--episodes", "1"], ["export", str(path), "--onnx", str(tmp_path / "a.onnx")]):
        capsys.readouterr()
        assert cli.main([*words, "--trust"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "(3, 84, 84)" in error or "was the network or the environment changed?" in error


def test_pictures_whose_channels_cannot_be_told_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd_eyes.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom outside.cameras import Cameras\n\n\n"
        "class Odd(Cameras):\n"
        "    observation_space = gymnasium.spaces.Box(0, 255, (20, 20, 20), np.uint8)\n\n\n"
        "gymnasium.register('OddEyes-v0', Odd)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert cli.main(["train", "--env", "gym/odd_eyes:OddEyes-v0", "--runs-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "make it [height, width, channels]" in error
    assert error.count("\n") == 1
