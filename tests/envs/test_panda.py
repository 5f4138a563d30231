"""The simulated Panda rig on virtual time: its tasks, its reset, and faults that have a name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.state import equal
from roboloop.envs import EnvConfig, make, scripted_policy
from roboloop.envs.check import check_env
from roboloop.envs.panda import suite as panda_suite
from roboloop.envs.panda import tasks
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.features import features
from roboloop.envs.panda.rig import RigEnv, push_distances_m
from roboloop.envs.panda.robot import (
    BadReading,
    CameraStale,
    Command,
    ControllerStopped,
    LimitHit,
    Reading,
    RobotFault,
)
from roboloop.envs.panda.suite import PandaEnvConfig

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")


def rig(task: str = "reach", **keys: Any) -> RigEnv:
    env = make(PandaEnvConfig(id=f"panda/{task}", panda=PandaConfig(**keys)))
    assert isinstance(env, RigEnv)
    return env


def simulation(env: RigEnv) -> Any:
    robot: Any = env.world.robot
    return robot.simulation


def stand(env: RigEnv, done: list[int]) -> None:
    """Take twenty steps that ask for nothing, and note each that was taken."""
    for step in range(20):
        env.step(np.zeros(3))
        done.append(step)


@pytest.mark.parametrize("task", panda_suite.TASKS)
def test_the_task_passes_the_contract(task: str) -> None:
    check_env(lambda: make(EnvConfig(id=f"panda/{task}", max_episode_steps=30)), steps=16)


@pytest.mark.parametrize("task", panda_suite.TASKS)
def test_the_expert_solves_nineteen_of_twenty(task: str) -> None:
    env, expert, solved = rig(task, done_on_success=True), scripted_policy(f"panda/{task}"), 0
    for seed in range(20):
        obs, ended, info = env.reset(seed), False, {"success": 0.0}
        while not ended:
            action = expert.act(obs[None], np.zeros((1, 0)), False, np.random.default_rng(0)).action[0]
            obs, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
        solved += info["success"] == 1.0
    assert solved >= 19


def test_the_static_names_are_those_of_the_table() -> None:
    assert tuple(tasks.TABLE) == panda_suite.TASKS
    assert all(name == task.name for name, task in tasks.TABLE.items())


def test_an_episode_is_twelve_seconds_of_five_actions() -> None:
    assert rig().spec.max_episode_steps == 60
    assert rig(hz=10.0, episode_s=3.0).spec.max_episode_steps == 30


@pytest.mark.parametrize(
    ("task", "obs", "actions"), [("reach", 6, 3), ("push", 8, 2), ("drawer", 3, 2), ("door", 6, 3)]
)
def test_observations_hold_the_valid_degrees_of_freedom_only(task: str, obs: int, actions: int) -> None:
    spec = rig(task).spec
    assert (spec.obs_shape, spec.action_dim) == ((obs,), actions)


def test_the_parts_of_an_observation_can_be_chosen() -> None:
    env = rig("door", observe=("ee_pos", "ee_quat", "object", "difference", "gripper"), dof=("x", "y"))
    obs = env.reset(0)
    assert env.spec.action_dim == 2
    assert obs.shape == (2 + 4 + 3 + 2 + 1,)
    assert obs[2:6] == pytest.approx([0, 1, 0, 0], abs=0.02)
    assert obs[9:11] == pytest.approx(obs[:2] - obs[6:8], abs=1e-6)


def test_two_limits_are_two_workspaces_and_both_hold() -> None:
    reached = {}
    for limits in ("small", "large"):
        env = rig(limits=limits)
        env.reset(0)
        for _ in range(25):
            obs = env.step(np.array([0.0, 1.0, 0.0]))[0]
        reached[limits] = float(obs[1])
    assert reached["small"] == pytest.approx(0.15, abs=0.01)
    assert reached["large"] == pytest.approx(0.4, abs=0.01)


def test_the_reward_is_the_decrease_of_the_distance_in_units_of_the_fastest_step() -> None:
    env = rig()
    obs = env.reset(3)
    before = np.linalg.norm(obs[:3] - obs[3:])
    obs, reward, *_ = env.step(np.array([0.3, -0.2, 0.1]))
    assert reward == pytest.approx((before - np.linalg.norm(obs[:3] - obs[3:])) / 0.04, abs=1e-4)


def test_a_hand_beside_the_puck_loses_nothing_by_going_behind_it() -> None:
    task = tasks.TABLE["push"]
    puck, goal = np.array([0.5, 0.0]), np.array([0.6, 0.0])
    around = [puck + 0.06 * np.array([-np.sin(turn), np.cos(turn)]) for turn in np.linspace(-0.5, np.pi / 2, 12)]
    left = [sum(push_distances_m(task, hand, puck, goal)) for hand in around]
    assert left == sorted(left, reverse=True)
    assert push_distances_m(task, puck - [task.behind_m, 0.0], puck, goal) == pytest.approx((0.1, 0.0))
    assert push_distances_m(task, around[0], goal, goal) == (0.0, 0.0)


def test_the_sparse_reward_is_one_once_the_goal_has_been_held() -> None:
    env, expert = rig(reward="sparse"), scripted_policy("panda/reach")
    obs, rewards = env.reset(0), []
    for _ in range(30):
        action = expert.act(obs[None], np.zeros((1, 0)), False, np.random.default_rng(0)).action[0]
        obs, reward, _, _, info = env.step(action)
        rewards.append(reward)
        assert reward == info["success"]
    assert rewards == sorted(rewards)
    assert rewards[0] == 0.0
    assert rewards[-1] == 1.0


@pytest.mark.parametrize(("task", "opening"), [("drawer", 0.15), ("door", 0.9)])
def test_the_reset_closes_what_was_left_open(task: str, opening: float) -> None:
    env = rig(task)
    env.reset(0)
    simulation(env).open(opening)
    start = tasks.draw(env.world.task, 5).start
    env.world._reset.run(start)
    assert simulation(env).opening < 0.01
    assert env.world.robot.read().ee_pos_m == pytest.approx(start, abs=0.01)
    assert env.world.robot.read().gripper_width_m == pytest.approx(0.08, abs=0.006)


def test_a_drawer_that_is_hardly_open_is_left_alone() -> None:
    env = rig("drawer")
    env.reset(0)
    simulation(env).open(0.015)
    env.world._reset.run(tasks.draw(env.world.task, 5).start)
    assert simulation(env).opening > 0.01


def test_the_gripper_closes_at_a_finite_speed() -> None:
    env = rig("drawer")
    env.reset(0)
    widths = [float(env.step(np.array([0.0, 1.0]))[0][2]) for _ in range(8)]
    assert 0.05 < widths[0] < 0.07  # 10 cm/s for 0.2 s, of 8 cm
    assert widths[-1] < 0.005


def test_the_arm_follows_its_target_within_a_centimetre_and_points_down() -> None:
    env = rig()
    env.reset(0)
    for _ in range(10):
        env.step(np.array([0.0, -0.3, 0.2]))
    for _ in range(10):
        env.step(np.zeros(3))
    reading = env.world.robot.read()
    assert reading.ee_pos_m == pytest.approx(env.world.lead_target.target_m, abs=0.005)
    assert np.abs(reading.ee_quat) == pytest.approx([0, 1, 0, 0], abs=0.02)


def test_sending_first_and_looking_later_is_the_same_as_a_step() -> None:
    one, two = rig("push"), rig("push")
    assert one.reset(4).tobytes() == two.begin(4).tobytes()
    for action in np.random.default_rng(0).uniform(-1, 1, (10, 2)).astype(np.float32):
        obs, reward, terminated, truncated, info = one.step(action)
        sent = two.send(action)
        two.world.robot.advance(two.world.period_s)
        out = two.observe()
        assert out.obs.tobytes() == obs.tobytes()
        assert (out.reward, out.terminated, out.truncated, out.success) == (
            reward,
            terminated,
            truncated,
            info["success"],
        )
        assert sent.tolist() == info["sent_action"]


def test_what_was_observed_carries_the_times_of_arm_and_camera() -> None:
    env = rig()
    env.begin(0)
    times = []
    for _ in range(5):
        env.send(np.zeros(3))
        env.world.robot.advance(0.2)
        reading = env.observe().reading
        assert reading is not None
        times.append(reading.arm_time_s)
        assert 0.04 <= reading.arm_time_s - reading.camera_time_s <= 0.04 + 1 / 30 + 1e-9
    assert np.diff(times) == pytest.approx([0.2] * 4)


def test_the_clock_of_readings_never_goes_back() -> None:
    env = rig()
    env.reset(0)
    before = env.world.robot.now_s()
    env.reset(0)
    assert env.world.robot.now_s() > before


@pytest.mark.parametrize(
    ("kind", "fault", "says"),
    [
        ("controller", ControllerStopped, "told to stop"),
        ("limit", LimitHit, "joint 4"),
        ("camera", CameraStale, "s old"),
        ("nan", BadReading, "not finite"),
    ],
)
def test_each_fault_has_a_name_and_ends_the_episode(kind: Any, fault: type[RobotFault], says: str) -> None:
    env = rig(faults=(FaultPlan(kind, at_s=1.0),))
    env.reset(0)
    done: list[int] = []
    with pytest.raises(fault, match=says):
        stand(env, done)
    assert len(done) == {"camera": 7}.get(kind, 4)
    for again in (lambda: env.step(np.zeros(3)), env.observe):  # dead steps cannot be had
        with pytest.raises(fault):
            again()
    assert np.isfinite(env.reset(1)).all()


def test_steps_seen_with_an_old_picture_are_not_fresh() -> None:
    env = rig(faults=(FaultPlan("camera", at_s=1.0),))
    env.begin(0)
    fresh = []
    for _ in range(7):
        env.send(np.zeros(3))
        env.wait_until(env.now_s() + env.period_s)
        fresh.append(env.observe().is_fresh)
    assert fresh == [True] * 5 + [False] * 2  # the picture of the second mark is old at 1.2 and 1.4 s
    with pytest.raises(CameraStale):
        env.step(np.zeros(3))


def test_faults_by_chance_come_from_the_episodes_seed() -> None:
    env = rig(faults=(FaultPlan("controller", at_s=0.2, chance=0.5),))

    def fails(seed: int) -> bool:
        env.reset(seed)
        try:
            for _ in range(3):
                env.step(np.zeros(3))
        except ControllerStopped:
            return True
        return False

    first = [fails(seed) for seed in range(12)]
    assert 0 < sum(first) < 12
    assert [fails(seed) for seed in range(12)] == first


def test_features_are_known_before_a_robot_is_connected() -> None:
    known = features(tasks.TABLE["door"])
    assert {f.name for f in known.reads} <= set(Reading.__dataclass_fields__)
    assert {f.name for f in known.takes} == set(Command.__dataclass_fields__)
    assert all(len(f.low) == len(f.high) == int(np.prod(f.shape)) for part in known for f in part)


def test_the_state_of_a_stopped_rig_survives() -> None:
    env = rig(faults=(FaultPlan("controller", at_s=0.1),))
    env.reset(0)
    with pytest.raises(ControllerStopped):
        env.step(np.zeros(3))
    fresh = rig(faults=(FaultPlan("controller", at_s=0.1),))
    fresh.set_state(env.get_state())
    assert equal(fresh.get_state(), env.get_state())
    with pytest.raises(ControllerStopped):
        fresh.step(np.zeros(3))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hz": 0.0}, "env.panda.hz must be more than 0"),
        ({"hz": 500.0}, "env.panda.hz must be at most 100"),
        ({"dof": ("x", "griper")}, "did you mean 'gripper'"),
        ({"dof": ("y", "x")}, "in the order x, y, z"),
        ({"dof": ("gripper",)}, "at least one of x, y, z"),
        ({"observe": ("ee_poss",)}, "did you mean 'ee_pos'"),
        ({"faults": (FaultPlan("camera", chance=2.0),)}, "no rig can have"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rig(**keys)


def test_what_a_rig_cannot_do_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="did you mean 'drawer'"):
        rig("drawr")
    with pytest.raises(ConfigError, match="z cannot move in panda/push"):
        rig("push", dof=("x", "y", "z"))
    with pytest.raises(ConfigError, match=r"env\.panda\.hz says how long"):
        make(EnvConfig(id="panda/reach", action_repeat=2))


def test_the_expert_refuses_an_observation_that_it_does_not_know() -> None:
    expert = scripted_policy("panda/reach")
    with pytest.raises(ConfigError, match=r"env\.panda\.observe"):
        expert.act(np.zeros((1, 7)), np.zeros((1, 0)), False, np.random.default_rng(0))


def test_layouts_keep_puck_and_goal_apart() -> None:
    task = tasks.TABLE["push"]
    layouts = [tasks.draw(task, seed) for seed in range(200)]
    assert min(np.linalg.norm((at.goal - at.puck)[:2]) for at in layouts) >= task.apart_m
    assert len({at.start.tobytes() for at in layouts}) == 200
