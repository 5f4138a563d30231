"""Whole runs from pixels: a crash leaves no trace, workers change no bit, and every verb takes such a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from roboloop import cli
from tests.run.helpers import remains, resume, train
from tests.run.test_resume import assert_same

pytest.importorskip("dm_control")

PIXELS = {
    "steps": 120,
    "warmup_steps": 30,
    "env": {
        "id": "dmc/cartpole-swingup", "observe": "pixels", "image_size": [24, 28], "frame_stack": 3,
        "action_repeat": 8, "max_episode_steps": 160, "eval_max_episode_steps": 80,
    },
    "algo": {
        "batch_size": 16, "hidden": [16], "conv_channels": [4, 4], "conv_kernels": [3, 3], "conv_strides": [2, 2],
        "feature_dim": 8, "n_step": 3, "processes": 1,
    },
    "replay": {"capacity": 70},
    "update": {"per_step": 0.5},
    "eval": {"every_steps": 60, "episodes": 2},
    "checkpoint": {"every_steps": 25},
}  # fmt: skip


def test_a_crash_leaves_no_trace(tiny) -> None:
    whole = train(tiny(experiment="whole", **PIXELS))
    path = train(tiny(experiment="broken", **PIXELS), crash_after=88)  # the ring has wrapped, an episode runs
    resume(path)
    assert_same(whole, path)


def test_workers_and_helpers_change_no_bit(tiny) -> None:
    changes = {**PIXELS, "env": {**PIXELS["env"], "num_envs": 2}, "sample": {"groups": 2}}
    serial = train(tiny(experiment="serial", **changes))
    changes |= {"sample": {"groups": 2, "workers": 2}, "algo": {**PIXELS["algo"], "processes": 2}}
    parallel = train(tiny(experiment="parallel", **changes))
    assert remains(serial)["metrics"] == remains(parallel)["metrics"]
    assert_same(serial, parallel)


def test_a_run_is_evaluated_filmed_and_recorded(tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train(tiny(**PIXELS))
    assert cli.main(["eval", str(path), "--episodes", "2", "--video"]) == 0
    assert cli.main(["record", str(path), "--episodes", "2"]) == 0
    assert "2 episodes" in capsys.readouterr().out
    (film,) = (path / "videos").iterdir()
    assert film.stat().st_size > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "dmc/cartpole-swingup", "--algo.shift-px", "64"], "shift_px 64 leaves nothing of pictures of 64x64"),
        (["--env", "soft/cloth-spread", "--env.soft.pick", "given"], "shift_px moves pictures and not the places"),
    ],
)
def test_shifts_that_make_no_sense_are_refused_in_one_line(tmp_path: Path, capsys, flags: list, message: str) -> None:
    assert cli.main(["train", *flags, "--env.observe", "pixels", "--runs-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
