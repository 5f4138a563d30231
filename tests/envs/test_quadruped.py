"""Laikago and A1: the tables are those of the files they were taken from, and every engine agrees with them."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.legged import suite as legged_suite
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.engine import Engine, make_engine
from roboloop.envs.legged.make import find_robot, make_world
from roboloop.envs.legged.model import from_quaternion, from_rpy
from roboloop.envs.legged.quadruped import A1Task, LaikagoTask, QuadrupedTask, roll_pitch_yaw
from roboloop.envs.legged.quadrupeds import Mass, box_inertia, joined
from roboloop.envs.legged.suite import LeggedEnvConfig
from roboloop.envs.legged.world import Frame

PACKAGES = {"bullet": "pybullet", "dart": "dartpy", "mujoco": "mujoco"}
QUIET = LeggedConfig(obs_noise=0.0, action_noise=0.0)
ROBOTS = {"laikago": LaikagoTask, "a1": A1Task}


@pytest.fixture(params=legged_suite.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


@pytest.fixture(params=ROBOTS)
def task(request: pytest.FixtureRequest) -> QuadrupedTask:
    return ROBOTS[request.param]()


def numbers(text: str | None) -> Array:
    return np.array([float(word) for word in (text or "0 0 0").split()])


@pytest.mark.parametrize(
    ("task", "path", "order"),
    [(LaikagoTask(), "laikago/laikago_toes_limits.urdf", [2, 0, 1]), (A1Task(), "a1/a1.urdf", [0, 1, 2])],
)
def test_the_table_is_that_of_the_file(task: QuadrupedTask, path: str, order: list[int]) -> None:
    data = pytest.importorskip("pybullet_data")
    root = Xml.parse(Path(data.getDataPath()) / path).getroot()
    total = sum(float(mass.get("value", "0")) for mass in root.iter("mass"))
    assert task.model.mass_kg == pytest.approx(total)
    hinges = [joint for joint in root.iter("joint") if joint.get("type") == "revolute"]
    assert len(hinges) == 12
    for joint in hinges:
        child = joint.find("child").get("link")  # type: ignore[union-attr]
        name = child.replace("_motor", "").replace("_leg", "")  # type: ignore[union-attr]
        ours = next(mine for mine in task.model.joints if mine.name == name)
        limit, origin, axis = joint.find("limit"), joint.find("origin"), joint.find("axis")
        assert ours.limits_rad == (float(limit.get("lower")), float(limit.get("upper")))  # type: ignore[union-attr, arg-type]
        np.testing.assert_allclose(ours.at_m, numbers(origin.get("xyz"))[order])  # type: ignore[union-attr]
        np.testing.assert_allclose(ours.axis, numbers(axis.get("xyz"))[order])  # type: ignore[union-attr]
        link = next(mine for mine in task.model.links if mine.name == name)
        inertial = next(found for found in root.iter("link") if found.get("name") == child).find("inertial")
        if not name.endswith("lower"):  # toes are part of the lower legs
            at = numbers(inertial.find("origin").get("xyz"))[order]  # type: ignore[union-attr]
            np.testing.assert_allclose(link.com_m, at, atol=1e-12)


def test_laikagos_inertias_are_those_that_bullet_takes_from_its_meshes() -> None:
    p = pytest.importorskip("pybullet")
    data = pytest.importorskip("pybullet_data")
    client = p.connect(p.DIRECT)
    try:
        path = str(Path(data.getDataPath()) / "laikago/laikago_toes_limits.urdf")
        robot = p.loadURDF(path, physicsClientId=client)
        for number, name in ((-1, "chassis"), (0, "FR_hip"), (1, "FR_upper")):
            said = np.array(p.getDynamicsInfo(robot, number, physicsClientId=client)[2])[[2, 0, 1]]
            ours = next(link.inertia_kg_m2 for link in LaikagoTask().model.links if link.name == name)
            np.testing.assert_allclose(ours, said, rtol=0.02)
    finally:
        p.disconnect(client)


def test_engines_agree_with_the_table_and_keep_what_they_are_given(task: QuadrupedTask, engine: str) -> None:
    robot, rng = make_engine(engine, task.model, task.contact), np.random.default_rng(0)
    for _ in range(3):
        q, dq = task.start(rng)
        q[2] += 5
        q[3:7] = rng.normal(size=4)
        q[3:7] /= np.linalg.norm(q[3:7])
        dq[:6] = rng.normal(size=6)
        robot.reset(q, dq)
        read_q, read_dq = robot.read()
        np.testing.assert_allclose(from_quaternion(read_q[3:7]), from_quaternion(q[3:7]), atol=1e-6)
        np.testing.assert_allclose(np.delete(read_q, range(3, 7)), np.delete(q, range(3, 7)), atol=1e-6)
        np.testing.assert_allclose(read_dq, dq, atol=1e-6)
        said, (positions, rotations) = robot.report(), task.model.poses(q)
        np.testing.assert_allclose(said.position_m, positions, atol=1e-5)
        np.testing.assert_allclose(said.rotation, rotations, atol=1e-5)
        np.testing.assert_allclose(robot.feet(), task.model.foot_positions(q), atol=1e-5)
    np.testing.assert_allclose(said.mass_kg, [link.mass_kg for link in task.model.links])
    np.testing.assert_allclose(said.inertia_kg_m2, [link.inertia_kg_m2 for link in task.model.links])
    np.testing.assert_allclose(said.limits_rad, task.model.limits_rad)


def test_a_tumbling_robot_flies_alike_in_all_engines(task: QuadrupedTask) -> None:
    ends = []
    for name in legged_suite.ENGINES:
        pytest.importorskip(PACKAGES[name])
        robot = make_engine(name, task.model, task.contact)
        q, dq = task.start(np.random.default_rng(1))
        q[2] += 20
        dq[3:6] = (1.0, -2.0, 0.5)
        robot.reset(q, dq)
        robot.step(np.zeros(12), 100)
        ends.append(task.model.poses(robot.read()[0])[0])
    np.testing.assert_allclose(ends[1], ends[0], atol=2e-3)
    np.testing.assert_allclose(ends[2], ends[0], atol=2e-3)


def test_a_quadruped_that_holds_its_joints_stands(task: QuadrupedTask, engine: str) -> None:
    robot = make_engine(engine, task.model, task.contact)
    q, dq = task.start(np.random.default_rng(0))
    rest, limit = q[7:].copy(), task.model.torque_nm
    assert task.model.foot_positions(q)[:, 2].min() > task.table.leg.toe_radius_m, "it begins above the floor"
    robot.reset(q, dq)
    for _ in range(600):
        robot.step(np.clip(3 * limit * (rest - q[7:]) - 0.05 * limit * dq[6:], -limit, limit))
        q, dq = robot.read()
    np.testing.assert_allclose(robot.feet()[:, 2], task.table.leg.toe_radius_m, atol=0.004)
    assert q[2] > task.table.lowest_m
    assert np.abs(roll_pitch_yaw(from_quaternion(q[3:7]))).max() < 0.2


def test_a_used_engine_goes_on_as_a_fresh_one_does_with_many_contacts(engine: str) -> None:
    task = LaikagoTask()
    q, dq = task.start(np.random.default_rng(0))

    def flown(robot: Engine) -> bytes:
        rng, rows = np.random.default_rng(1), []
        for _ in range(25):
            robot.step(rng.uniform(-20, 20, 12), 10)
            rows.append(np.concatenate(robot.read()))
        return np.array(rows).tobytes()

    fresh = make_engine(engine, task.model, task.contact)
    fresh.reset(q, dq)
    expected = flown(fresh)
    for steps in (7, 23):
        rng = np.random.default_rng(steps)
        for _ in range(steps):
            fresh.step(rng.uniform(-30, 30, 12), 10)
        fresh.reset(q, dq)
        assert flown(fresh) == expected


def test_an_observation_is_the_states_of_now_and_of_four_and_eight_steps_ago() -> None:
    pytest.importorskip("mujoco")
    world = make_world(A1Task(), "mujoco", QUIET)
    obs = world.start(0)
    assert obs.shape == (111,)
    states = [world.true_state()]
    assert obs.tobytes() == np.concatenate([states[0]] * 3).tobytes()
    for step in range(1, 12):
        obs = world.advance(np.full(12, 0.05, np.float32), 1).obs
        states.append(world.true_state())
        expected = [states[max(0, step - lag)] for lag in (0, 4, 8)]
        assert obs.tobytes() == np.concatenate(expected).tobytes()


def test_noise_is_drawn_once_for_each_state_and_not_anew_as_it_ages() -> None:
    pytest.importorskip("mujoco")
    world = make_world(A1Task(), "mujoco", LeggedConfig())
    seen = [world.start(0)[:37]]
    for _ in range(9):
        obs = world.advance(np.zeros(12, np.float32), 1).obs
        seen.append(obs[:37])
    assert obs[37:74].tobytes() == seen[5].tobytes()
    assert obs[74:].tobytes() == seen[1].tobytes()


def test_a_state_puts_a_quadruped_where_it_was_but_for_the_speeds_that_it_does_not_tell(engine: str) -> None:
    world = make_world(LaikagoTask(), engine, QUIET)
    world.start(3)
    for _ in range(4):
        world.advance(np.full(12, 0.1, np.float32), 1)
    state = world.true_state()
    q, dq = world.task.pose(state)
    world.restore(q, dq)
    np.testing.assert_allclose(world.true_state(), state, atol=1e-6)
    assert np.count_nonzero(dq[3:]) == 0


def test_the_reward_is_paid_by_the_table(task: QuadrupedTask) -> None:
    q, dq = task.start(np.random.default_rng(0))
    q[1] = 0.0
    q[3:7], q[7:] = (0, 0, 0, 1), task.table.start_rad * 4
    before = Frame(q, dq, None)
    ahead, still = q.copy(), dq.copy()
    ahead[0] += 0.01
    reward, ended = task.judge(before, Frame(ahead, still, None), np.full(12, 0.5), 500)
    assert reward == pytest.approx(4.5 + 4.0 * 0.5 - 0.1 * 12 * 0.25)
    assert not ended
    assert task.judge(before, Frame(ahead, still, None), np.zeros(12), 5)[0] == pytest.approx(4.5 + 4.0 * 0.1)
    aside = ahead.copy()
    aside[1] = -0.2
    assert task.judge(before, Frame(aside, still, None), np.zeros(12), 500)[0] == pytest.approx(4.5 + 2.0 - 0.1)
    fallen = q.copy()
    fallen[2] = task.table.lowest_m
    assert task.judge(before, Frame(fallen, dq, None), np.zeros(12), 1)[1]
    tilted = q.copy()
    tilted[3:7] = (np.sin(0.65), 0, 0, np.cos(0.65))
    assert task.judge(before, Frame(tilted, dq, None), np.zeros(12), 1)[1]


@pytest.mark.parametrize("robot", ROBOTS)
def test_variants_are_named_alike_for_every_robot(robot: str) -> None:
    variants = find_robot(robot).variants
    assert tuple(variants) == legged_suite.VARIANTS
    heavy = variants["heavy"].loads
    model = find_robot(robot).model
    for link in model.links:
        if link.name in heavy:
            assert heavy[link.name].mass_kg > link.mass_kg
            assert heavy[link.name].com_m[2] < link.com_m[2]


def test_two_masses_become_one_with_the_same_momentum_of_inertia() -> None:
    pair = joined(Mass(1.0, (0.0, 0.0, 1.0), (0.1, 0.1, 0.1)), Mass(3.0, (0.0, 0.0, -1.0), (0.0, 0.0, 0.0)))
    assert (pair.kg, pair.at_m) == (4.0, (0.0, 0.0, -0.5))
    assert pair.inertia_kg_m2 == pytest.approx((3.1, 3.1, 0.1))
    assert box_inertia(12.0, (1.0, 2.0, 3.0)) == pytest.approx((13.0, 10.0, 5.0))
    np.testing.assert_allclose(roll_pitch_yaw(from_rpy((0.1, -0.4, 2.0))), (0.1, -0.4, 2.0))


@pytest.mark.parametrize("env_id", ["laikago/bullet", "laikago/mujoco", "laikago/dart-heavy", "a1/bullet-deform"])
def test_quadrupeds_pass_the_contract(env_id: str) -> None:
    pytest.importorskip(PACKAGES[env_id.partition("/")[2].partition("-")[0]])
    check_env(lambda: make(EnvConfig(id=env_id, max_episode_steps=30)), steps=12)


def test_a1_passes_the_contract_in_every_engine(engine: str) -> None:
    cfg = LeggedEnvConfig(id=f"a1/{engine}", legged=LeggedConfig(randomize=True, push_n=5.0), max_episode_steps=30)
    check_env(lambda: make(cfg), steps=12, pictures=False)
