"""What the arm's control step leaves out is nothing: the physics stays the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make, scripted_policy
from roboloop.envs.check import check_env
from roboloop.envs.headless import prefer_egl
from roboloop.envs.metaworld.suite import MT10

prefer_egl()
pytest.importorskip("metaworld", reason="roboloop[metaworld] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Constant")

LOOSE = ("reach-v3", "push-v3", "pick-place-v3", "peg-insert-side-v3")
"""Tasks of MT10 whose object lies on the table."""
HINGED = tuple(task for task in MT10 if task not in LOOSE)


def arm_of(env: Any) -> Any:
    return env.world._arm


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Keep what a method answers."""
    answers: list[bool] = []
    method: Callable[[], bool] = getattr(owner, name)

    def ask() -> bool:
        answers.append(method())
        return answers[-1]

    monkeypatch.setattr(owner, name, ask)
    return answers


def random_actions(seed: int, count: int) -> Iterator[Array]:
    yield from np.random.default_rng(seed).uniform(-1, 1, (count, 4)).astype(np.float32)


@pytest.mark.parametrize("task", HINGED)
def test_most_steps_in_free_air_need_no_collision_detection(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    env = make(EnvConfig(id=f"metaworld/{task}"))
    holds = counted(monkeypatch, arm_of(env)._room, "holds")
    env.reset(1)
    for action in random_actions(1, 150):
        env.step(action)
    assert sum(holds) > 40  # a drawer that slides towards its place leaves less room than a window


@pytest.mark.parametrize("task", LOOSE)
def test_an_object_that_lies_on_something_always_needs_it(task: str) -> None:
    assert not arm_of(make(EnvConfig(id=f"metaworld/{task}")))._room.exists


@pytest.mark.parametrize("task", ["window-open-v3", "drawer-open-v3"])
def test_where_the_expert_touches_something_collisions_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    env, expert = make(EnvConfig(id=f"metaworld/{task}")), scripted_policy(task)
    holds = counted(monkeypatch, arm_of(env)._room, "holds")
    obs, touched, rng = env.reset(1), 0, np.random.default_rng(0)
    for _ in range(120):
        obs = env.step(expert.act(obs[None], np.zeros((1, 0), np.float32), False, rng).action[0])[0]
        if env.world._data.ncon:  # type: ignore[attr-defined]
            touched += 1
            assert not holds[-1]
    assert touched > 20


@pytest.mark.parametrize("task", ["window-close-v3", "drawer-close-v3"])
def test_a_step_that_did_not_go_as_expected_is_taken_back_and_done_in_full(
    monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    doubting, trusting = (make(EnvConfig(id=f"metaworld/{task}")) for _ in range(2))
    room, answers = arm_of(doubting)._room, []
    kept = room.kept

    def sometimes() -> bool:
        answers.append(kept() and len(answers) % 3 != 0)
        return answers[-1]

    monkeypatch.setattr(room, "kept", sometimes)
    assert doubting.reset(2).tobytes() == trusting.reset(2).tobytes()
    for action in random_actions(2, 120):
        a, b = doubting.step(action), trusting.step(action)
        assert a[0].tobytes() == b[0].tobytes()
        assert a[1:] == b[1:]
    assert answers.count(False) > 10


def test_a_hand_that_is_faster_than_expected_did_not_keep_its_room() -> None:
    env = make(EnvConfig(id="metaworld/window-open-v3"))
    room = arm_of(env)._room
    env.reset(1)
    for _ in range(3):
        env.step(np.zeros(4))
    assert room.holds()
    assert room.kept()
    room._hand[0] += 0.02
    assert not room.kept()


def tilt(room: Any) -> None:
    room._quat[:] = (1, 0, 0, 0)


def push(room: Any) -> None:
    room._qvel[-1] += 0.1


def shift(room: Any) -> None:
    room._qpos[-1] += 0.01


@pytest.mark.parametrize("disturb", [tilt, push, shift])
def test_a_turned_hand_or_a_moved_object_ends_the_room(disturb: Callable[[Any], None]) -> None:
    env = make(EnvConfig(id="metaworld/window-open-v3"))
    env.reset(1)
    for _ in range(3):
        env.step(np.zeros(4))
    room = arm_of(env)._room
    assert room.holds()
    disturb(room)
    assert not room.holds()


@pytest.mark.parametrize("task", ["window-open-v3", "drawer-close-v3"])
def test_the_contract_holds_with_and_without_collision_detection(task: str) -> None:
    check_env(lambda: make(EnvConfig(id=f"metaworld/{task}", max_episode_steps=60)), steps=40, pictures=False)
