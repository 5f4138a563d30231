"""Legged robots: the same description in every engine, torques that count once, variants that do what they say."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.legged import suite as legged_suite
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.engine import Contact, Engine, make_engine
from roboloop.envs.legged.hopper import CONTACT, MODEL, VARIANTS, HopperTask
from roboloop.envs.legged.make import make_world
from roboloop.envs.legged.model import (
    SUBSTEP_S,
    Joint,
    Link,
    RobotModel,
    Shape,
    from_quaternion,
    from_rpy,
    rotation_about,
    to_quaternion,
)
from roboloop.envs.legged.suite import LeggedEnvConfig
from roboloop.envs.legged.variants import Situation, Variant, draw
from roboloop.envs.legged.world import Frame, LeggedWorld

PACKAGES = {"bullet": "pybullet", "dart": "dartpy", "mujoco": "mujoco"}
QUIET = LeggedConfig(obs_noise=0.0, action_noise=0.0)


@pytest.fixture(params=legged_suite.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


def world(engine: str, cfg: LeggedConfig = QUIET) -> LeggedWorld:
    return make_world(HopperTask(), engine, cfg)


def stood(z: float = 1.25) -> tuple[Array, Array]:
    return np.array([0.0, z, 0.0, 0.0, 0.0, 0.0]), np.zeros(6)


def flown(robot: Engine, steps: int = 30, seed: int = 1) -> Array:
    """Return where some torques lead."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(steps):
        robot.step(rng.uniform(-60, 60, 3), 10)
        rows.append(np.concatenate(robot.read()))
    return np.array(rows)


SPINNER_INERTIA = 0.5
SPINNER = RobotModel(
    "spinner",
    "planar",
    (
        Link("anvil", "", None, 1e6, (0, 0, 0), (1e6, 1e6, 1e6), (Shape("sphere", (0.05,)),)),
        Link(
            "wheel",
            "anvil",
            Joint("axle", (0.0, 1.0, 0.0), (0.0, 0.0, 0.3), (-9.0, 9.0), 0.0, 10.0),
            1.0,
            (0, 0, 0),
            (SPINNER_INERTIA,) * 3,
            (Shape("sphere", (0.05,)),),
            foot_m=(0.0, 0.0, 0.0),
        ),
    ),
)


def test_a_torque_is_applied_once_per_substep(engine: str) -> None:
    robot = make_engine(engine, SPINNER, CONTACT)
    robot.reset(np.array([0.0, 50.0, 0.0, 0.0]), np.zeros(4))
    for substep in (1, 2, 3):
        robot.step(np.array([10.0]))
        assert robot.read()[1][3] == pytest.approx(substep * 10.0 * SUBSTEP_S / SPINNER_INERTIA, rel=1e-4)
    robot.step(np.array([10.0]), 7)
    assert robot.read()[1][3] == pytest.approx(10 * 10.0 * SUBSTEP_S / SPINNER_INERTIA, rel=1e-4)
    robot.step(np.zeros(1))
    assert robot.read()[1][3] == pytest.approx(10 * 10.0 * SUBSTEP_S / SPINNER_INERTIA, rel=1e-4), "it was kept"


def test_a_second_application_of_a_torque_would_double_it_in_bullet() -> None:
    pytest.importorskip("pybullet")
    from roboloop.envs.legged.bullet import BulletEngine

    robot = BulletEngine(SPINNER, CONTACT)
    robot.reset(np.array([0.0, 50.0, 0.0, 0.0]), np.zeros(4))
    p, again = robot._p, robot._motors
    p.setJointMotorControlArray(robot._robot, again, p.TORQUE_CONTROL, forces=[10.0], physicsClientId=robot._client)
    robot.step(np.array([10.0]))
    assert robot.read()[1][3] == pytest.approx(2 * 10.0 * SUBSTEP_S / SPINNER_INERTIA, rel=1e-4)


def test_the_engines_say_of_the_robot_what_its_description_says(engine: str) -> None:
    robot, rng = make_engine(engine, MODEL, CONTACT), np.random.default_rng(3)
    low, high = MODEL.limits_rad
    for _ in range(5):
        q = np.concatenate((rng.uniform((-1, 4, -1), (1, 6, 1)), rng.uniform(low, high)))
        robot.reset(q, np.zeros(6))
        said, (positions, rotations) = robot.report(), MODEL.poses(q)
        coms = positions + np.einsum("lij,lj->li", rotations, [link.com_m for link in MODEL.links])
        np.testing.assert_allclose(said.position_m, positions, atol=1e-6)
        np.testing.assert_allclose(said.rotation, rotations, atol=1e-6)
        np.testing.assert_allclose(said.com_m, coms, atol=1e-6)
        np.testing.assert_allclose(robot.feet(), MODEL.foot_positions(q), atol=1e-6)
    np.testing.assert_allclose(said.mass_kg, [link.mass_kg for link in MODEL.links])
    np.testing.assert_allclose(said.inertia_kg_m2, [link.inertia_kg_m2 for link in MODEL.links])
    np.testing.assert_allclose(said.limits_rad, MODEL.limits_rad)
    np.testing.assert_allclose(said.damping, [2.0, 2.0, 2.0])


def test_a_robot_in_free_fall_falls_as_newton_says(engine: str) -> None:
    robot = make_engine(engine, MODEL, CONTACT)
    robot.reset(*stood(20.0))
    robot.step(np.zeros(3), 250)
    q, dq = robot.read()
    # semi-implicit Euler: the speed is exact, the way is longer by half a substep's
    assert dq[1] == pytest.approx(-10 * 0.5, rel=1e-5)
    assert q[1] == pytest.approx(20.0 - 5 * 0.25 - 5 * 0.5 * SUBSTEP_S, abs=1e-4)
    np.testing.assert_allclose(q[2:], 0.0, atol=1e-6)


def test_a_hopper_that_holds_its_joints_stands_on_the_floor(engine: str) -> None:
    robot, held = make_engine(engine, MODEL, CONTACT), np.array([0.12, -0.24, 0.12])
    robot.reset(np.array([0.0, 1.22, 0.0, *held]), np.zeros(6))
    for _ in range(1000):
        q, dq = robot.read()
        robot.step(np.clip(400 * (held - q[3:]) - 10 * dq[3:], -200, 200))
    assert robot.feet()[0, 2] == pytest.approx(0.06, abs=0.003), "the foot's sole is on z = 0"
    assert np.abs(dq).max() < 0.05
    assert abs(q[2]) < 0.05


def test_joints_stop_at_their_limits(engine: str) -> None:
    robot = make_engine(engine, MODEL, CONTACT)
    robot.reset(*stood(20.0))
    robot.step(np.array([0.0, 0.0, 60.0]), 200)
    assert robot.read()[0][5] == pytest.approx(0.785398, abs=0.05)


@pytest.mark.parametrize("history", range(3))
def test_a_used_engine_goes_on_as_a_fresh_one_does(engine: str, history: int) -> None:
    fresh = make_engine(engine, MODEL, CONTACT)
    fresh.reset(*stood(1.21))
    expected = flown(fresh)
    used, rng = make_engine(engine, MODEL, CONTACT), np.random.default_rng(history)
    for _ in range(4):
        q, dq = stood(1.21)
        used.reset(q + rng.uniform(-0.3, 0.3, 6), dq + rng.uniform(-3, 3, 6))
        for _ in range(int(rng.integers(5, 40))):
            used.push(rng.uniform(-80, 80, (1, 3)))
            used.step(rng.uniform(-200, 200, 3), 10)
        used.push(np.ones((1, 3)))  # of a push that was never stepped, nothing remains
        used.reset(*stood(1.21))
        assert flown(used).tobytes() == expected.tobytes()


def test_a_push_moves_the_robot_by_its_impulse(engine: str) -> None:
    robot = make_engine(engine, MODEL, CONTACT)
    robot.reset(*stood(20.0))
    robot.push(np.array([[300.0, 0.0, 0.0]]))
    robot.step(np.zeros(3))
    before = momentum(robot)
    robot.step(np.zeros(3))
    assert before == pytest.approx(300 * SUBSTEP_S, rel=0.02)
    assert momentum(robot) == pytest.approx(before, rel=0.02), "it lasts one substep"


def momentum(robot: Engine) -> float:
    """Return the robot's momentum along x, by differences."""
    q, dq = robot.read()
    step = 1e-6
    ends = [MODEL.poses(q + sign * step * dq) for sign in (-1, 1)]
    coms = [p + np.einsum("lij,lj->li", r, [link.com_m for link in MODEL.links]) for p, r in ends]
    speeds = (coms[1] - coms[0])[:, 0] / (2 * step)
    return float(speeds @ [link.mass_kg for link in MODEL.links])


def test_friction_decides_whether_a_foot_slides(engine: str) -> None:
    slid = {}
    for friction in (0.05, 2.0):
        robot = make_engine(engine, MODEL, CONTACT)
        robot.set_contact([CONTACT._replace(friction=friction)])
        q, dq = stood(1.21)
        robot.reset(q, dq + np.array([1.0, 0, 0, 0, 0, 0]))
        robot.step(np.zeros(3), 60)
        slid[friction] = robot.feet()[0, 0] - 0.065
    assert slid[0.05] > 0.06
    assert abs(slid[2.0]) < 0.5 * slid[0.05]


@pytest.mark.parametrize("engine", ["bullet", "mujoco"])
def test_a_softer_contact_lets_the_foot_sink(engine: str) -> None:
    pytest.importorskip(PACKAGES[engine])
    lowest = {}
    for name, contact in {"hard": CONTACT, "soft": CONTACT._replace(stiffness_n_m=2000.0, damping_ns_m=200.0)}.items():
        robot = make_engine(engine, MODEL, contact)
        robot.reset(*stood(1.25))
        heights = []
        for _ in range(20):
            robot.step(np.zeros(3), 10)
            heights.append(robot.feet()[0, 2] - 0.06)
        lowest[name] = min(heights)
    assert lowest["hard"] > -0.01
    assert lowest["soft"] < -0.02


def test_parameters_at_zero_are_the_simulator_itself_bit_for_bit(engine: str) -> None:
    plain, hybrid = world(engine, LeggedConfig()), world(engine, LeggedConfig())
    assert plain.start(3).tobytes() == hybrid.start(3).tobytes()
    rng = np.random.default_rng(0)
    for _ in range(25):
        action = rng.uniform(-0.3, 0.3, 3).astype(np.float32)
        hybrid.set_parameters(np.zeros(hybrid.num_parameters))
        a, b = plain.advance(action, 1), hybrid.advance(action, 1)
        assert a.obs.tobytes() == b.obs.tobytes()
        assert a.reward == b.reward


def test_parameters_scale_motors_and_contact() -> None:
    pytest.importorskip("mujoco")
    robot = world("mujoco")
    assert robot.parameter_names == (
        "foot.friction",
        "foot.spinning",
        "foot.restitution",
        "foot.hardness",
        "thigh.motor",
        "leg.motor",
        "foot.motor",
    )
    robot.start(0)
    t = np.zeros(robot.num_parameters)
    t[0], t[3], t[6] = 0.5, -1.0, np.log(0.5) / np.log(3.0)
    robot.set_parameters(t)
    np.testing.assert_allclose(robot._limit_nm, [200, 200, 100])
    contact = robot._engine._contacts[0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(contact, Contact(1.6, 0.0, 0.5, 1e5 / 400, 5.0))


def test_a_motor_scale_is_the_power_variant() -> None:
    pytest.importorskip("mujoco")
    weak, scaled = world("mujoco-power"), world("mujoco")
    weak.start(1)
    scaled.start(1)
    t = np.array([0, 0, 0, 0, 0, 0, np.log(0.5) / np.log(3.0)])
    for _ in range(10):
        scaled.set_parameters(t)
        action = np.array([0.1, -0.2, 0.3], np.float32)
        np.testing.assert_allclose(weak.advance(action, 1).obs, scaled.advance(action, 1).obs, rtol=1e-6)


def test_the_next_episode_forgets_the_parameters(engine: str) -> None:
    robot = world(engine)
    robot.start(5)
    first = robot.advance(np.full(3, 0.5, np.float32), 1).obs
    robot.set_parameters(np.full(robot.num_parameters, -0.7))
    robot.start(5)
    assert robot.advance(np.full(3, 0.5, np.float32), 1).obs.tobytes() == first.tobytes()


def test_a_robot_can_be_put_where_an_observation_saw_it(engine: str) -> None:
    robot = world(engine)
    robot.start(2)
    for _ in range(5):
        seen = robot.advance(np.array([0.1, -0.1, 0.05], np.float32), 1).obs
    other = world(engine)
    other.start(9)
    again = other.restore(*other.task.pose(seen))
    np.testing.assert_allclose(again, seen, atol=1e-9)
    assert other.frame().q[0] == 0.0


def test_noise_is_seen_but_neither_rewarded_nor_a_reason_to_end() -> None:
    pytest.importorskip("mujoco")
    clean, noisy = (world("mujoco", LeggedConfig(obs_noise=width, action_noise=0.0)) for width in (0.0, 0.5))
    first = clean.start(4)
    assert np.abs(noisy.start(4) - first).max() > 0.1
    for _ in range(15):
        a, b = (robot.advance(np.full(3, 0.1, np.float32), 1) for robot in (clean, noisy))
        assert (a.reward, a.terminated) == (b.reward, b.terminated)
        assert a.obs.tobytes() == noisy.true_obs().tobytes() != b.obs.tobytes()


def test_the_reward_is_paid_by_its_table() -> None:
    task = HopperTask()
    q, dq = stood(1.2)
    before = Frame(q, dq, None)
    after_q, after_dq = q.copy(), dq.copy()
    after_q[0], after_q[5], after_dq[3:] = 0.04, 0.78, (1.0, -2.0, 3.0)
    reward, ended = task.judge(before, Frame(after_q, after_dq, None), np.array([1.0, 0.0, -0.5]), 1)
    assert reward == pytest.approx(3.0 + 2.0 - 0.5 * 1.25 - 3.0 - 0.05 * 6)
    assert not ended
    for number, value in ((1, 0.59), (1, 1.81)):
        wrong = q.copy()
        wrong[number] = value
        assert task.judge(before, Frame(wrong, dq, None), np.zeros(3), 1)[1]
    fast = dq.copy()
    fast[4] = -50.0
    assert task.judge(before, Frame(q, fast, None), np.zeros(3), 1)[1]


def test_a_motor_that_drives_is_weaker_the_faster_it_is_and_one_that_brakes_is_not() -> None:
    pytest.importorskip("mujoco")
    robot = world("mujoco-emf")
    robot.start(0)
    dq = np.array([5.0, -5.0, 12.0])
    np.testing.assert_allclose(robot._torque(np.array([0.5, 0.5, 0.5]), dq), [50.0, 100.0, 0.0])
    np.testing.assert_allclose(robot._torque(np.array([-0.5, -0.5, -0.5]), dq), [-100.0, -50.0, -100.0])


@pytest.mark.parametrize(("latency_s", "share"), [(0.0, 1.0), (0.005, 0.75), (0.02, 0.0), (0.03, 0.0)])
def test_latency_holds_actions_back(latency_s: float, share: float) -> None:
    pytest.importorskip("mujoco")
    robot = world("mujoco", LeggedConfig(obs_noise=0, action_noise=0, latency_s=latency_s))
    robot.start(0)
    np.testing.assert_allclose(robot._delayed(np.ones(3)), share)
    np.testing.assert_allclose(robot._delayed(np.ones(3)), 0.5 if latency_s == 0.03 else 1.0)


def test_a_heavy_robot_is_heavy_in_every_engine(engine: str) -> None:
    robot = world(f"{engine}-heavy")
    robot.start(0)
    said = robot._engine.report()
    np.testing.assert_allclose(said.mass_kg, [5.66519, 5.05789, 2.78136, 5.31557])
    positions, rotations = robot.model.poses(robot.frame().q)
    np.testing.assert_allclose(said.com_m[0], positions[0] + rotations[0] @ [0, 0, 0.15], atol=1e-6)
    np.testing.assert_allclose(said.inertia_kg_m2[0], MODEL.links[0].inertia_kg_m2)


def test_every_variant_is_in_the_table_and_changes_something() -> None:
    assert tuple(VARIANTS) == legged_suite.VARIANTS
    assert all(variant != Variant() for variant in VARIANTS.values())


def test_an_unknown_variant_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown variant 'hevy' of hopper; did you mean 'heavy'\?"):
        make(EnvConfig(id="hopper/bullet-hevy"))
    with pytest.raises(ConfigError, match=r"unknown engine 'bulet' of hopper; did you mean 'bullet'\?"):
        make(EnvConfig(id="hopper/bulet"))
    with pytest.raises(ConfigError, match="only bullet has a deformable floor"):
        make(EnvConfig(id="hopper/mujoco-deform"))
    with pytest.raises(ConfigError, match="hopper/dart-soft: contacts of dart are rigid"):
        make(EnvConfig(id="hopper/dart-soft"))
    with pytest.raises(ConfigError, match="contacts of dart are rigid"):
        make(LeggedEnvConfig(id="hopper/dart", legged=LeggedConfig(contact_damping_ns_m=10.0)))


def test_numbers_of_the_config_go_before_those_of_the_variant() -> None:
    pytest.importorskip("mujoco")
    cfg = LeggedConfig(torque_scale=(1.0, 0.5, 0.25), friction=0.3, latency_s=0.01)
    robot = world("mujoco-power", cfg)
    robot.start(0)
    np.testing.assert_allclose(robot._limit_nm, [200, 100, 50])
    assert robot._situation.contact.friction == 0.3
    assert robot._situation.action_latency_s == 0.01
    with pytest.raises(ConfigError, match="torque_scale must be 3 numbers, one per motor, got 2"):
        world("mujoco", LeggedConfig(torque_scale=(1.0, 1.0)))
    with pytest.raises(ConfigError, match=r"env.legged.friction must be 0 or more, got -1"):
        make(LeggedEnvConfig(id="hopper/mujoco", legged=LeggedConfig(friction=-1.0)))


def test_domains_are_drawn_anew_in_each_episode_and_never_by_chance(engine: str) -> None:
    cfg = LeggedConfig(randomize=True)
    robot, other = world(engine, cfg), world(engine, cfg)
    masses = []
    for seed in (1, 2, 1):
        robot.start(seed)
        masses.append(robot._engine.report().mass_kg)
    assert masses[0].tobytes() == masses[2].tobytes() != masses[1].tobytes()
    other.start(1)
    action = np.full(3, 0.2, np.float32)
    for _ in range(10):
        assert robot.advance(action, 1).obs.tobytes() == other.advance(action, 1).obs.tobytes()


def test_domains_stay_in_their_ranges() -> None:
    task = HopperTask()
    for seed in range(50):
        situation = Situation(MODEL, CONTACT, Variant())
        draw(task.domains, situation, np.random.default_rng(seed))
        ratios = np.array([a.mass_kg / b.mass_kg for a, b in zip(situation.model.links, MODEL.links, strict=True)])
        assert ((ratios > 0.5) & (ratios < 1.5)).all()
        assert 0 <= situation.action_latency_s <= 0.02
        assert 0.32 <= situation.contact.friction <= 1.2
        assert all(0.2 <= joint.damping <= 3.0 for joint in situation.model.joints)
        ratio = situation.contact.stiffness_n_m / situation.contact.damping_ns_m
        assert ratio == pytest.approx(CONTACT.stiffness_n_m / CONTACT.damping_ns_m)


def test_pushes_come_from_the_episodes_seed(engine: str) -> None:
    cfg = LeggedConfig(obs_noise=0, action_noise=0, push_n=80.0)
    pushed, again, calm = world(engine, cfg), world(engine, cfg), world(engine)
    ends = []
    for robot in (pushed, again, calm):
        robot.start(6)
        for _ in range(5):
            obs = robot.advance(np.zeros(3, np.float32), 1).obs
        ends.append(obs.tobytes())
    assert ends[0] == ends[1] != ends[2]


@pytest.mark.parametrize("task", ["bullet-deform", "bullet-soft", "dart", "dart-heavy", "mujoco-latency"])
def test_variants_pass_the_contract(task: str) -> None:
    pytest.importorskip(PACKAGES[task.partition("-")[0]])
    check_env(lambda: make(EnvConfig(id=f"hopper/{task}", max_episode_steps=60)), steps=20)


def test_randomized_and_pushed_episodes_pass_the_contract(engine: str) -> None:
    cfg = LeggedEnvConfig(id=f"hopper/{engine}", legged=LeggedConfig(randomize=True, push_n=80.0), max_episode_steps=60)
    check_env(lambda: make(cfg), steps=20, pictures=False)


def test_rotations_and_quaternions_are_each_others_inverses() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        turn = from_rpy(tuple(rng.uniform(-3, 3, 3)))  # type: ignore[arg-type]
        np.testing.assert_allclose(from_quaternion(to_quaternion(turn)), turn, atol=1e-12)
    np.testing.assert_allclose(rotation_about((0.0, 1.0, 0.0), np.pi / 2) @ [0, 0, 1], [1, 0, 0], atol=1e-12)
