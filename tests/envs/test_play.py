"""The play world: its physics by hand, its tasks as pure functions, its experts, and how hard it is for chance."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.envs import EnvConfig, auxiliary_tasks, make, scripted_policy
from roboloop.envs.check import check_env, check_tasks
from roboloop.envs.env import EpisodeEnv
from roboloop.envs.play import suite as play_suite
from roboloop.envs.play.tasks import CLOSED, HOLDING, OPEN, PERCH_STAND, PLATE_Y, SHELF_STAND, SHELF_X, STAND_Y, Scene
from roboloop.envs.play.world import FALL, SPEED


def play(task: str = "place", scene: Scene | None = None) -> EpisodeEnv:
    env = make(EnvConfig(id=f"play/{task}"))
    env.reset(0)
    if scene is not None:
        env.set_state({**env.get_state(), "world": {"scene": list(scene)}})
    return env


def scene(env: EpisodeEnv) -> Scene:
    return Scene(*env.get_state()["world"]["scene"])


def moved(env: EpisodeEnv, x: float, y: float, grip: float) -> Scene:
    env.step(np.array([x, y, grip]))
    return scene(env)


@pytest.mark.parametrize("task", play_suite.TASKS)
def test_the_world_passes_the_contract(task: str) -> None:
    check_env(lambda: make(EnvConfig(id=f"play/{task}")))


@pytest.mark.parametrize("task", play_suite.TASKS)
def test_the_tasks_are_pure_functions_of_rows_and_the_main_one_is_first(task: str) -> None:
    env, tasks = play(task), auxiliary_tasks(EnvConfig(id=f"play/{task}"))
    check_tasks(env, tasks)
    assert tasks.names[0] == task
    assert {*tasks.names, "place"} == {*play_suite.TASKS} - {"perch"} | {task}


@pytest.mark.parametrize("task", play_suite.TASKS)
def test_the_worlds_own_reward_and_success_are_those_of_the_first_task_bit_for_bit(task: str) -> None:
    env, tasks = (
        make(EnvConfig(id=f"play/{task}", max_episode_steps=2000)),
        auxiliary_tasks(EnvConfig(id=f"play/{task}")),
    )
    column = tasks.names.index(task)
    expert, rng = scripted_policy(f"play/{task}"), np.random.default_rng(1)
    obs, seen = env.reset(5), []
    for t in range(2000):
        action = expert.act(obs[None], np.zeros((1, 0)), False, rng).action[0]
        if t % 3 == 0:
            action = rng.uniform(-1, 1, 3).astype(np.float32)
        after, reward, *_, info = env.step(action)
        seen.append((obs, action, after, reward, info["success"]))
        obs = after
    before, actions, afters, rewards, successes = (np.array(column) for column in zip(*seen, strict=True))
    assert 0 < successes.sum() < 2000
    assert np.array_equal(tasks.task_rewards(before, actions, afters)[:, column], rewards.astype(np.float32))
    assert np.array_equal(tasks.task_successes(before, actions, afters)[:, column], successes == 1)


def test_an_open_hand_that_closes_at_the_block_takes_it_along_and_a_closed_one_does_not() -> None:
    near = Scene(-0.5, 0.03125, OPEN, -0.5, 0.0)
    env = play(scene=near)
    assert moved(env, 0, 0, 1) == Scene(-0.5, 0.03125, HOLDING, -0.5, 0.03125)
    after = moved(env, 1, 1, 0.1)
    assert (after.block_x, after.block_y) == (after.hand_x, after.hand_y)
    assert after.hand_x == pytest.approx(-0.5 + SPEED, abs=1e-5)
    env = play(scene=near._replace(width=CLOSED))
    assert moved(env, 0, 0, 1).width == CLOSED
    assert moved(env, 0, 0, 0).width == OPEN
    far = play(scene=near._replace(hand_y=0.125))
    assert moved(far, 0, 0, 1).width == CLOSED


def test_a_block_that_is_let_go_falls_to_the_floor_or_onto_the_shelf() -> None:
    env = play(scene=Scene(0.0, 0.5, HOLDING, 0.0, 0.5))
    heights = [moved(env, 0, 0, -1).block_y for _ in range(5)]
    assert heights == [0.5 - FALL, 0.5 - 2 * FALL, 0.5 - 3 * FALL, 0.0, 0.0]
    env = play(scene=Scene(SHELF_X, 0.8125, HOLDING, SHELF_X, 0.8125))
    heights = [moved(env, 0, 0, -1).block_y for _ in range(4)]
    assert heights[-2:] == [STAND_Y, STAND_Y]
    under = play(scene=Scene(SHELF_X, 0.25, HOLDING, SHELF_X, 0.25))
    assert [moved(under, 0, 0, -1).block_y for _ in range(2)][-1] == 0.0


def test_no_hand_passes_the_shelf_and_beside_it_is_a_way() -> None:
    for x, blocked in ((SHELF_X, True), (SHELF_X - SHELF_STAND.half - 0.1, False)):
        env = play(scene=Scene(x, PLATE_Y - 0.03125, OPEN, -0.5, 0.0))
        for _ in range(3):
            after = moved(env, 0, 1, -1)
        assert (after.hand_y < PLATE_Y) is blocked
        env = play(scene=Scene(x, PLATE_Y + 0.03125, OPEN, -0.5, 0.0))
        for _ in range(3):
            after = moved(env, 0, -1, -1)
        assert (after.hand_y > PLATE_Y) is blocked


def test_each_task_succeeds_in_the_scene_that_it_asks_for_and_in_no_other() -> None:
    tasks = auxiliary_tasks(EnvConfig(id="play/place"))
    scenes = {
        "nothing": Scene(0.0, 0.75, OPEN, -0.5, 0.0),
        "closed at the block": Scene(-0.5, 0.03125, CLOSED, -0.5, 0.0),
        "open at the block": Scene(-0.5, 0.03125, OPEN, -0.5, 0.0),
        "held": Scene(-0.5, 0.25, HOLDING, -0.5, 0.25),
        "held over the shelf": Scene(SHELF_X, 0.75, HOLDING, SHELF_X, 0.75),
        "falling onto the shelf": Scene(SHELF_X, 0.75, OPEN, SHELF_X, 0.75),
        "on the shelf": Scene(-0.5, 0.75, OPEN, SHELF_X, STAND_Y),
    }
    obs = np.array([s.observation(SHELF_STAND) for s in scenes.values()], np.float32)
    found = tasks.task_successes(obs, obs[:, :3], obs)
    done = {name: [task for task, is_done in zip(tasks.names, row, strict=True) if is_done]
            for name, row in zip(scenes, found, strict=True)}  # fmt: skip
    assert done == {
        "nothing": [],
        "closed at the block": ["reach"],
        "open at the block": ["reach", "release"],
        "held": ["reach", "grasp"],
        "held over the shelf": ["reach", "grasp", "move"],
        "falling onto the shelf": ["reach"],
        "on the shelf": ["place"],
    }
    rewards = tasks.task_rewards(obs, obs[:, :3], obs)
    assert ((rewards == 1) == found).all()
    assert ((rewards >= 0) & (rewards <= 1)).all()


def successes(task: str, steps: int, scenes: int, noise: float = 0.0) -> float:
    """Return how many of the scenes an expert has solved by its last step, whatever the scene is like."""
    env, expert, rng = make(EnvConfig(id=f"play/{task}")), scripted_policy(f"play/{task}"), np.random.default_rng(2)
    solved = 0
    for seed in range(scenes):
        obs = env.reset(seed)
        for t in range(steps):
            action = expert.act(obs[None], np.zeros((1, 0)), False, rng).action[0]
            if noise and t < steps // 2:
                action = rng.uniform(-1, 1, 3).astype(np.float32)
            obs, *_, info = env.step(action)
        solved += int(info["success"])
    return solved / scenes


@pytest.mark.parametrize("task", play_suite.TASKS)
def test_the_expert_of_each_task_solves_it_and_stays(task: str) -> None:
    assert successes(task, steps=60, scenes=40) == 1.0
    assert successes(task, steps=100, scenes=40, noise=1.0) == 1.0


def test_chance_reaches_and_grasps_but_never_places() -> None:
    env, tasks = make(EnvConfig(id="play/place")), auxiliary_tasks(EnvConfig(id="play/place"))
    rng, found = np.random.default_rng(0), np.zeros(5)
    for seed in range(100):
        obs = env.reset(seed)
        episode = [obs]
        for _ in range(100):
            obs = env.step(rng.uniform(-1, 1, 3))[0]
            episode.append(obs)
        rows = np.stack(episode)
        found += tasks.task_successes(rows[:-1], rows[1:, :3], rows[1:]).any(0)
    by_name = dict(zip(tasks.names, found / 100, strict=True))
    assert by_name["reach"] > 0.08
    assert by_name["grasp"] > 0.03
    assert by_name["move"] == by_name["place"] == 0


def test_on_the_perch_a_block_must_lie_and_be_grasped_more_exactly_than_on_the_shelf() -> None:
    aside, low = SHELF_X + PERCH_STAND.half + 0.03125, 0.0625
    assert aside < SHELF_X + SHELF_STAND.half
    assert PERCH_STAND.grasp < low < SHELF_STAND.grasp
    for main, rests in (("place", True), ("perch", False)):
        env = play(main, Scene(aside, 0.625, HOLDING, aside, 0.625, SHELF_X))
        heights = [moved(env, 0, 0, -1).block_y for _ in range(6)]
        assert heights[-1] == (STAND_Y if rests else 0.0)
        env = play(main, Scene(-0.5, low, OPEN, -0.5, 0.0, SHELF_X))
        assert (moved(env, 0, 0, 1).width == HOLDING) is rests


def test_the_perch_is_elsewhere_in_each_episode_and_an_observation_says_where() -> None:
    env = play("perch")
    for seed in range(20):
        obs, s = env.reset(seed), scene(env)
        assert PERCH_STAND.x_range[0] <= s.stand_x <= PERCH_STAND.x_range[1]
        assert obs[3] + obs[7] == np.float32(s.stand_x)
    assert scene(env).stand_x != scene(play("perch")).stand_x
    assert {scene(play("place")).stand_x} == {SHELF_X}


def test_an_unknown_task_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown play task 'plase'; did you mean 'place'"):
        make(EnvConfig(id="play/plase"))
    with pytest.raises(ConfigError, match="play/place: unknown task 'graps'; did you mean 'grasp'"):
        scripted_policy("play/place", "graps")
    with pytest.raises(ConfigError, match=r"tiny/point declares no auxiliary tasks: there are some in panda/\.\.\."):
        auxiliary_tasks(EnvConfig(id="tiny/point"))


def test_the_picture_shows_hand_and_block_where_they_are() -> None:
    env = play(scene=Scene(-0.5, 0.75, OPEN, 0.0, 0.0))
    first = env.render()
    moved(env, 1, 0, -1)
    assert first.shape == (96, 96, 3)
    assert (first != env.render()).any()
    assert (first == (240, 140, 20)).all(-1).any()
