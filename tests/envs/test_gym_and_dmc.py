"""What Gymnasium and DM Control call an observation, an end and a success, in our terms."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from roboloop.core.config import override
from roboloop.core.errors import ConfigError
from roboloop.core.flags import parse_flags
from roboloop.envs import EnvConfig, headless, make
from roboloop.envs.check import check_env
from roboloop.envs.config import ViewEnvConfig
from roboloop.envs.headless import prefer_egl, probe
from roboloop.run.config import Experiment

prefer_egl()


class Toy(gymnasium.Env[Any, Any]):
    """A drunkard's walk towards +3, seen as a dict or as a tiny picture."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, picture: bool = False) -> None:
        self.picture, self.place = picture, 0.0
        parts: dict[str, spaces.Space[Any]] = {
            "place": spaces.Box(-np.inf, np.inf, (1,)),
            "noise": spaces.Box(0, 1, (2,)),
        }
        self.observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8) if picture else spaces.Dict(parts)

    def _see(self) -> Any:
        if self.picture:
            return self.np_random.integers(0, 256, (6, 5, 3), np.uint8)
        return {"place": np.array([self.place], np.float32), "noise": self.np_random.random(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0.0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += float(action[0])
        there = self.place >= 3
        return self._see(), -1.0, there, False, {"is_success": there}


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    gymnasium.register("Toy-v0", f"{__name__}:Toy", max_episode_steps=30)
    gymnasium.register("ToyPicture-v0", f"{__name__}:Toy", kwargs={"picture": True})
    yield
    del gymnasium.registry["Toy-v0"], gymnasium.registry["ToyPicture-v0"]


def test_dict_observations_are_flattened_and_pictures_stay_bytes_with_channels_first() -> None:
    flat, picture = make(EnvConfig(id="gym/Toy-v0")), make(EnvConfig(id="ToyPicture-v0"))
    assert (flat.spec.obs_shape, flat.spec.obs_dtype) == ((3,), "float32")
    assert (picture.spec.obs_shape, picture.spec.obs_dtype) == ((3, 6, 5), "uint8")
    assert picture.reset(0).dtype == np.uint8


@pytest.mark.parametrize("env_id", ["Toy-v0", "ToyPicture-v0"])
def test_toys_pass_the_contract(env_id: str) -> None:
    check_env(lambda: make(EnvConfig(id=env_id)), steps=20, pictures=False)


def test_the_time_limit_of_gymnasium_becomes_our_clock() -> None:
    assert make(EnvConfig(id="Toy-v0")).spec.max_episode_steps == 30
    assert make(EnvConfig(id="ToyPicture-v0")).spec.max_episode_steps == 1000
    env = make(EnvConfig(id="Toy-v0", max_episode_steps=50))
    env.reset(0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


def test_success_is_read_from_the_info_and_absent_where_unknown() -> None:
    env = make(EnvConfig(id="Toy-v0"))
    env.reset(0)
    steps = [env.step(np.ones(1)) for _ in range(3)]
    assert [step[4]["success"] for step in steps] == [0.0, 0.0, 1.0]
    assert steps[-1][2:4] == (True, False)
    pendulum = make(EnvConfig(id="Pendulum-v1"))
    pendulum.reset(0)
    assert pendulum.step(np.zeros(1))[4] == {}


def test_a_zero_discount_terminates_and_the_time_limit_truncates() -> None:
    pytest.importorskip("dm_control")
    env: Any = make(EnvConfig(id="dmc/cartpole-swingup"))
    assert env.spec.max_episode_steps == 1000
    env.reset(0)
    env.world._env.task.get_termination = lambda physics: 0.0
    assert env.step(np.zeros(1))[2:4] == (True, False)
    short = make(EnvConfig(id="dmc/cartpole-swingup", max_episode_steps=2))
    short.reset(0)
    assert [short.step(np.zeros(1))[2:4] for _ in range(2)] == [(False, False), (False, True)]


def test_a_domain_may_contain_underscores() -> None:
    pytest.importorskip("dm_control")
    assert make(EnvConfig(id="dmc/ball_in_cup-catch")).reset(0).shape == (8,)


def test_unbounded_actions_are_refused() -> None:
    pytest.importorskip("dm_control")
    with pytest.raises(ConfigError, match="bounded actions only"):
        make(EnvConfig(id="dmc/lqr-lqr_2_1"))


def test_dmc_from_pixels_shows_where_an_action_led_and_keeps_the_contract() -> None:
    cfg = ViewEnvConfig(id="dmc/cartpole-swingup", observe="pixels", action_repeat=8, max_episode_steps=120)
    check_env(lambda: make(cfg), steps=10)
    env, state = make(cfg), make(dataclasses.replace(cfg, observe="state"))
    assert (env.spec.obs_shape, env.spec.obs_dtype) == ((3, 64, 64), "uint8")
    pictures = [env.reset(3)]
    state.reset(3)
    for _ in range(3):
        picture, *rest = env.step(np.ones(1))
        assert rest == list(state.step(np.ones(1))[1:])  # physics does not know who looks
        pictures.append(picture)
    assert all((a != b).any() for a, b in itertools.pairwise(pictures))
    for made in (env, state):
        made.close()


def test_dmc_pictures_have_the_size_that_is_asked_for_and_no_grey() -> None:
    env = make(ViewEnvConfig(id="dmc/ball_in_cup-catch", observe="pixels", image_size=(48, 40)))
    assert env.reset(0).shape == env.spec.obs_shape == (3, 48, 40)
    env.close()


def test_pixels_are_refused_where_there_is_one_view() -> None:
    with pytest.raises(ConfigError, match=r"tiny/point has no env\.observe, it is for dmc, soft"):
        parse_flags(Experiment(), ["--env.id", "tiny/point", "--env.observe", "pixels"])
    with pytest.raises(ConfigError, match=r"tiny/point has no env\.observe, it is for dmc, soft"):
        override(Experiment(), {"env": {"id": "tiny/point", "observe": "pixels"}})
    with pytest.raises(ConfigError, match="did you mean 'pixels'"):
        make(ViewEnvConfig(id="dmc/cartpole-swingup", observe="pixel"))


def in_a_process(*args: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with no backend chosen but as said: this process has chosen its own already."""
    ours = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "ROBOLOOP_DRAWS_WITH", "DISPLAY", "WAYLAND_DISPLAY")
    env = {name: value for name, value in os.environ.items() if name not in ours} | variables
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def train(runs: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Train a few steps without a single update."""
    short = "--steps 4 --warmup-steps 9 --algo.processes 1 --algo.batch-size 4 --replay.capacity 50 --eval.episodes 0"
    return in_a_process("-m", "roboloop.cli", "train", *flags, "--runs-dir", runs, *short.split(), **variables)


def cure() -> str:
    """Return what a refusal ends with on this machine."""
    return "MUJOCO_GL=egl works here" if probe("egl").frames_per_s else headless.INSTALL


@pytest.mark.parametrize("backend", ["bogus", "osmesa", "glfw"])
def test_pictures_by_a_backend_that_cannot_draw_are_refused_in_one_line_and_leave_no_run(
    tmp_path: Path, backend: str
) -> None:
    pytest.importorskip("dm_control")
    done = train(tmp_path, "cartpole-pixels", MUJOCO_GL=backend, DISPLAY=":99")
    if backend == "osmesa" and probe(backend).frames_per_s:  # the only one of them that some machines have
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"roboloop: MUJOCO_GL={backend} cannot be used: ")
    assert line.endswith(cure())
    assert not list(tmp_path.iterdir())


def test_a_broken_egl_is_named_with_its_cause(tmp_path: Path) -> None:
    pytest.importorskip("dm_control")
    done = train(tmp_path, "cartpole-pixels", MUJOCO_GL="egl", MUJOCO_EGL_DEVICE_ID="99")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("roboloop: MUJOCO_GL=egl cannot be used: ")


def test_training_from_state_needs_no_backend_that_draws_but_one_that_mujoco_knows(tmp_path: Path) -> None:
    pytest.importorskip("dm_control")
    from_state = "from roboloop.envs import *; print(make(EnvConfig(id='dmc/cartpole-swingup')).reset(0).shape)"
    done = in_a_process("-c", from_state, MUJOCO_GL="glfw", DISPLAY=":99")
    assert (done.stdout, done.stderr) == ("(5,)\n", "")
    done = train(tmp_path, "--env", "dmc/cartpole-swingup", MUJOCO_GL="bogus")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == f"roboloop: MUJOCO_GL=bogus cannot be used: it is none of egl, osmesa, glfw; {cure()}"


DRAW = """
from roboloop.envs import make
from roboloop.envs.config import ViewEnvConfig
env = make(ViewEnvConfig(id="dmc/cartpole-swingup", observe="pixels", image_size=(500, 700)))
picture = env.reset(0)
env.close()
print(picture.shape, picture[:, 480:].std() > 0, picture[:, :, 640:].std() > 0)
"""


def test_egl_draws_where_the_display_is_gone_and_more_than_mujocos_640_pixels() -> None:
    pytest.importorskip("dm_control")
    if not probe("egl").frames_per_s:
        pytest.skip(probe("egl").trouble)
    done = in_a_process("-c", DRAW, DISPLAY=":99")
    assert (done.stdout, done.stderr) == ("(3, 500, 700) True True\n", "")


def test_absurd_pictures_are_refused_in_one_line(tmp_path: Path) -> None:
    done = train(tmp_path, "cartpole-pixels", "--env.image-size", "64", "9000")
    assert done.returncode == 2
    assert done.stderr == "roboloop: env.image_size must be at most 2048 each way, got [64, 9000]\n"


def test_a_backend_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setattr(headless, "PROBE_S", 0.01)
    assert probe.__wrapped__("egl").trouble.startswith("no picture within")
