"""Doom: real seeds, real ends, pictures to the last step, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env, check_seeding, check_spaces
from roboloop.envs.doom.scenarios import SCENARIOS, Delta, Rise, either, turning
from roboloop.envs.doom.suite import DoomEnvConfig
from roboloop.envs.env import SimulatorDied

pytest.importorskip("vizdoom")
pytest.importorskip("cv2")
CHECKED = ["basic", "health-gathering-supreme", "deathmatch"]


@contextmanager
def doom(task: str, **settings: Any) -> Iterator[Any]:
    """Open a task with the customary frame skip."""
    env = make(DoomEnvConfig(id=f"doom/{task}", **{"action_repeat": 4, **settings}))
    try:
        yield env
    finally:
        env.close()


def engines_of(pid: int) -> list[int]:
    """Return the engine processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        state, parent = rest.split()[:2]
        if name == "vizdoom" and int(parent) == pid and state != "Z":
            found.append(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Wait for a process to end."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and is_alive(pid):
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("task", CHECKED)
def test_a_task_passes_the_contract(task: str) -> None:
    cfg = DoomEnvConfig(id=f"doom/{task}", action_repeat=4, max_episode_steps=90, grayscale=task == CHECKED[1])
    check_env(lambda: make(cfg), steps=16)


@pytest.mark.parametrize("task", [task for task in SCENARIOS if task not in CHECKED])
def test_every_other_task_is_seeded_and_keeps_its_spec(task: str) -> None:
    with doom(task) as env, doom(task) as other:
        check_spaces(env)
        check_seeding(env, other, steps=25)


def test_pictures_have_the_size_and_colours_that_were_asked_for() -> None:
    with doom("my-way-home") as env:
        assert (env.spec.obs_shape, env.spec.obs_dtype) == ((3, 72, 128), np.uint8)
        seen, screen = env.reset(0), env.render()
        assert screen.shape == (120, 160, 3)
        assert np.abs(seen.mean((1, 2)) - screen.mean((0, 1))).max() < 3  # channels are where they belong
    with doom("my-way-home", image_size=(84, 84), grayscale=True) as env:
        assert env.reset(0).shape == env.spec.obs_shape == (1, 84, 84)
        assert env.render().shape == (120, 160, 3)
        assert env.spec.protocol["observation"] == "grey 84x84"


def test_measurements_stand_beside_the_picture() -> None:
    with doom("deathmatch") as env:
        assert env.spec.obs_dtype == np.dtype([("vector", np.float32, (20,)), ("image", np.uint8, (3, 72, 128))])
        assert env.spec.action_choices == (3, 3, 11, 2, 2, 7)
        obs = env.reset(0)
        health, armor, kills, weapon = obs["vector"][:4].tolist()
        assert (round(health, 3), armor, kills, weapon) == (3.333, 0.0, 0.0, 2.0)
        assert obs["image"].any()


def play(env: Any, seed: int, choices: list[int]) -> list[bytes]:
    return [env.reset(seed).tobytes(), *(env.step(np.array([choice]))[0].tobytes() for choice in choices)]


def test_what_an_earlier_episode_did_leaves_no_trace_in_the_pictures() -> None:
    choices = [1, 3, 1, 1, 3, 2, 3]
    with doom("basic") as env:
        first = play(env, 3, choices)
        for before in ([1] * 10, [1] * 3, [2] * 10):  # each leaves a swinging weapon
            play(env, 5, before)
            assert play(env, 3, choices) == first


def test_holding_the_buttons_natively_is_the_same_as_pressing_them_tic_by_tic() -> None:
    with doom("basic") as held, doom("basic", action_repeat=1) as tapped:
        assert held.reset(2).tobytes() == tapped.reset(2).tobytes()
        for choice in (1, 1, 2, 0, 2, 3):
            obs, reward, *_ = held.step(np.array([choice]))
            tics = [tapped.step(np.array([choice])) for _ in range(4)]
            assert tics[-1][0].tobytes() == obs.tobytes()
            assert sum(tic[1] for tic in tics) == pytest.approx(reward)


def test_the_clock_truncates_and_its_last_picture_is_what_a_longer_episode_shows_there() -> None:
    with doom("my-way-home", max_episode_steps=18) as short, doom("my-way-home", action_repeat=2) as longer:
        assert short.spec.max_episode_steps == 5
        short.reset(1)
        longer.reset(1)
        steps = [short.step(np.array([1, 1])) for _ in range(5)]
        for _ in range(9):
            last = longer.step(np.array([1, 1]))[0]
        assert [step[2:4] for step in steps] == [(False, False)] * 4 + [(False, True)]
        assert steps[-1][0].tobytes() == last.tobytes()
        assert steps[-1][0].tobytes() != steps[-2][0].tobytes()


def test_the_scenarios_own_time_limit_truncates_too() -> None:
    with doom("basic") as env:
        assert (env.spec.protocol["horizon"], env.spec.max_episode_steps) == (300, 75)
        env.reset(0)
        steps = [env.step(np.zeros(1)) for _ in range(75)]
        assert [step[2:4] for step in steps] == [(False, False)] * 74 + [(False, True)]
        assert sum(step[4]["raw_reward"] for step in steps) == -300
        assert sum(step[1] for step in steps) == pytest.approx(-3)
        assert steps[-1][4]["success"] == 0.0


def test_death_terminates_and_the_last_picture_is_the_last_that_was_drawn() -> None:
    with doom("deadly-corridor") as env:
        obs = env.reset(1)
        for _ in range(300):
            before = obs
            obs, reward, terminated, truncated, info = env.step(np.zeros(4))
            if terminated or truncated:
                break
        assert (terminated, truncated, info["success"]) == (True, False, 0.0)
        assert info["raw_reward"] == pytest.approx(-100, abs=30)
        assert reward == pytest.approx(info["raw_reward"] / 100)
        assert obs.tobytes() == before.tobytes()
        assert obs.any()
        assert env.render().any()


def test_killing_the_monster_is_a_success() -> None:
    with doom("basic") as env:
        solved = []
        for seed in range(6):
            env.reset(seed)
            rng, total = np.random.default_rng(seed), 0.0
            for _ in range(75):
                _, _, terminated, _, info = env.step(rng.integers(1, 4, 1))
                total += info["raw_reward"]
                if terminated:
                    break
            assert info["success"] == float(terminated)
            solved.append(terminated and total > -300)
        assert any(solved)


def test_a_medkit_is_worth_one_and_is_not_in_the_raw_reward() -> None:
    with doom("health-gathering-supreme") as env:
        assert env.spec.action_choices == (5,)
        assert env.spec.protocol["horizon"] == 2100
        env.reset(21)
        steps = [env.step(np.array([3])) for _ in range(4)]  # straight ahead lies one
        assert [round(step[1], 6) for step in steps] == [0.04, 0.04, 0.04, 1.04]
        assert [round(step[4]["raw_reward"], 6) for step in steps] == [0.04] * 4


def test_shaping_pays_for_changes_of_game_variables() -> None:
    assert Rise("HEALTH", 1.0)({"HEALTH": 50}, {"HEALTH": 75}) == 1.0
    assert Rise("HEALTH", 1.0)({"HEALTH": 50}, {"HEALTH": 50}) == 0.0
    delta = Delta("ARMOR", rise=0.5, fall=0.25, most=10)
    assert [delta({"ARMOR": 5}, {"ARMOR": after}) for after in (7, 1, 99)] == [1.0, -1.0, 5.0]


def test_the_first_choice_of_every_column_does_nothing() -> None:
    assert either("A", "B") == ({}, {"A": 1.0}, {"B": 1.0})
    assert [option["TURN_LEFT_RIGHT_DELTA"] for option in turning(10, 5)] == [0, 5, -5, 10, -10]
    for scenario in SCENARIOS.values():
        assert not any(value for column in scenario.columns for value in column[0].values())


def test_closing_ends_the_engine_and_nothing_is_written_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    before = engines_of(os.getpid())
    with doom("basic") as env:
        env.reset(0)
        (engine,) = set(engines_of(os.getpid())) - set(before)
        instance = env.world._game.get_instance_id()
        assert not list(Path("/dev/shm").glob(f"*{instance}"))
    assert gone(engine)
    assert [path.name for path in tmp_path.rglob("*")] == ["scratch"]


def test_an_engine_dies_with_a_process_that_is_killed() -> None:
    code = (
        "import time; from roboloop.envs import EnvConfig, make\n"
        "env = make(EnvConfig(id='doom/basic')); env.reset(0); print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        (engine,) = engines_of(owner.pid)
        owner.send_signal(signal.SIGKILL)
    assert gone(engine)


def test_a_terminal_interrupt_does_not_reach_the_engine() -> None:
    before = engines_of(os.getpid())
    with doom("basic") as env:
        (engine,) = set(engines_of(os.getpid())) - set(before)
        assert os.getsid(engine) != os.getsid(0)
        assert env.reset(0).any()


def test_an_engine_that_cannot_be_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vizdoom.exe_path", str(tmp_path / "nowhere"))
    with pytest.raises(SimulatorDied, match="nowhere cannot be run"):
        make(EnvConfig(id="doom/basic"))


def test_a_dead_engine_is_one_clear_error_and_a_new_environment_goes_on() -> None:
    def die_in(call: str) -> None:
        before = engines_of(os.getpid())
        with doom("basic") as env:
            env.reset(0)
            (engine,) = set(engines_of(os.getpid())) - set(before)
            os.kill(engine, signal.SIGKILL)
            assert gone(engine)
            with pytest.raises(SimulatorDied, match="the ViZDoom process of 'doom/basic' died"):
                env.step(np.zeros(1)) if call == "step" else env.reset(1)
            with pytest.raises(SimulatorDied):
                env.reset(1)

    die_in("step")
    die_in("reset")
    with doom("basic") as env:
        first: Array = env.reset(0)
        assert first.any()
