"""What a simulator predicts from recorded states, and where a robot is put down for it."""

from dataclasses import replace

import numpy as np
import pytest

from roboloop.envs.legged.clearance import lowest_m, raised
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.hopper import MODEL, HopperTask
from roboloop.envs.legged.make import make_world
from roboloop.envs.legged.model import Shape
from roboloop.envs.legged.prediction import (
    Pose,
    Recorded,
    Start,
    deviation,
    errors,
    predict,
    put_down,
    standstill,
    starts,
)
from roboloop.envs.legged.quadruped import LaikagoTask

QUIET = LeggedConfig(obs_noise=0, action_noise=0)
DX = 5
"""Number of the state that is a mean over the last control step, so that no single state says it exactly."""


def world_of(task):
    return make_world(HopperTask(), task, QUIET)


def record(task, episodes=6):
    """Return episodes of random actions, without noise."""
    world, rng = world_of(task), np.random.default_rng(0)
    found = []
    for seed in range(episodes):
        states, actions, is_over = [world.reset(seed)], [], False
        while not is_over:
            actions.append(np.clip(rng.normal(0, 0.5, 3), -1, 1).astype(np.float32))
            out = world.step(actions[-1], 1)
            states.append(out.obs)
            is_over = out.terminated
        found.append(Recorded(np.array(states, np.float32), np.array(actions)))
    world.close()
    return found


def judged(task, episodes, steps, parameters=None):
    world = world_of(task)
    moments = starts(world, episodes, steps)
    found = errors(predict(world, moments, parameters), moments, deviation(episodes), steps)
    world.close()
    return found


@pytest.fixture(scope="module")
def own():
    return record("bullet")


@pytest.fixture(scope="module")
def weak():
    return record("bullet-power")


@pytest.mark.parametrize(
    ("shape", "reach_m"),
    [
        (Shape("sphere", (0.1,)), 0.1),
        (Shape("capsule", (0.1, 0.6)), 0.4),
        (Shape("capsule", (0.1, 0.6), rpy_rad=(0.0, np.pi / 2, 0.0)), 0.1),
        (Shape("capsule", (0.1, 0.6), rpy_rad=(np.pi / 3, 0.0, 0.0)), 0.25),
        (Shape("box", (0.2, 0.4, 0.6)), 0.3),
        (Shape("box", (0.2, 0.4, 0.6), rpy_rad=(0.0, np.pi / 4, 0.0)), 0.4 / np.sqrt(2)),
        (Shape("sphere", (0.1,), at_m=(0.0, 0.0, -0.5)), 0.6),
    ],
)
def test_the_lowest_point_of_each_shape_is_that_of_geometry(shape, reach_m):
    alone = replace(MODEL, links=(replace(MODEL.links[0], shapes=(shape,)),))
    assert lowest_m(alone, np.array([7.0, 2.0, 0.0])) == pytest.approx(2.0 - reach_m)


def test_the_lowest_point_turns_with_the_robot():
    thigh_down = np.array([0.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    assert lowest_m(MODEL, thigh_down) == pytest.approx(2.0 - 0.2 - 0.45 - 0.5 - 0.06)
    head_down = np.array([0.0, 2.0, np.pi, 0.0, 0.0, 0.0])
    assert lowest_m(MODEL, head_down) == pytest.approx(2.0 - 0.2 - 0.05)
    assert lowest_m(MODEL, raised(MODEL, head_down, 0.5)) == pytest.approx(2.5 - 0.2 - 0.05)


def standing(depth_m):
    """Return an upright robot at rest with its foot so deep in the floor."""
    q, dq = np.zeros(6), np.zeros(6)
    q = raised(MODEL, q, -lowest_m(MODEL, q) - depth_m)
    return Pose(q, dq, lowest_m(MODEL, q))


def speed_up_m_s(world, pose, lifts):
    """Return how fast the torso rises one control step later."""
    put_down(world, pose) if lifts else world.restore(pose.q, pose.dq)
    world.advance(np.zeros(3), 1)
    return world.frame().dq[1]


def test_a_robot_that_noise_put_into_the_floor_is_lifted_since_the_floor_would_shoot_it_up():
    world = world_of("bullet")
    world.start(0)
    assert speed_up_m_s(world, standing(0.05), lifts=False) > 1.0
    assert abs(speed_up_m_s(world, standing(0.05), lifts=True)) < 0.2
    world.close()


def test_a_robot_is_left_as_deep_in_the_floor_as_the_floor_is_soft():
    world = world_of("bullet")
    world.start(0)
    sunk = standing(0.05)
    put_down(world, sunk)
    assert lowest_m(MODEL, world.frame().q) == pytest.approx(-3 * MODEL.mass_kg * 10 / 1e5)  # under 5 mm
    softer = np.zeros(7)
    softer[3] = -0.5  # hardness: a twentieth
    world.set_parameters(softer)
    put_down(world, sunk)
    assert lowest_m(MODEL, world.frame().q) == pytest.approx(-0.05)
    put_down(world, standing(-0.3))
    assert lowest_m(MODEL, world.frame().q) == pytest.approx(0.3)  # who is in the air stays there
    world.close()


def test_moments_are_each_kth_step_and_never_reach_past_an_episodes_end():
    states = np.zeros((8, 11))
    states[:, 0] = np.arange(8) + 10
    world = world_of("bullet")
    moments = starts(world, [Recorded(states, np.arange(7.0)[:, None] * np.ones(3))], 3)
    world.close()
    assert [(m.states[-1][0], m.actions[0][0], len(m.actions), m.after[0]) for m in moments] == [
        (10, 0, 3, 13),
        (13, 3, 3, 16),
    ]


@pytest.mark.parametrize("engine", ["bullet", "dart", "mujoco"])
def test_from_all_of_its_q_and_dq_a_world_goes_on_as_if_it_had_never_been_put_back(engine):
    world = world_of(engine)
    world.reset(3)
    rng = np.random.default_rng(0)
    for _ in range(12):
        world.step(rng.uniform(-1, 1, 3), 1)
    frame, action = world.frame(), rng.uniform(-1, 1, 3)
    world.step(action, 1)
    expected = world.frame()
    world.restore(frame.q, frame.dq)
    world.step(action, 1)
    np.testing.assert_allclose(world.frame().q, expected.q, atol=1e-12)
    np.testing.assert_allclose(world.frame().dq, expected.dq, atol=1e-12)
    world.close()


def test_a_world_predicts_its_own_steps_to_a_hundredth_of_what_varies(own):
    """Not to the bit: a state says a mean speed, float32 keeps seven digits, and contacts magnify both."""
    found = judged("bullet", own, 1)
    assert found.count == sum(len(e.actions) for e in own)
    assert (found.rmse / deviation(own)).max() < 0.02
    assert found.median < 1e-4


def test_the_speed_that_a_state_leaves_unsaid_comes_from_the_step_before(own):
    world = world_of("bullet")
    moments = [m for m in starts(world, own, 1) if m.before]
    blind = [m._replace(before=()) for m in moments]
    scale = deviation(own)
    seeing, guessing = (errors(predict(world, some), some, scale, 1).rmse / scale for some in (moments, blind))
    world.close()
    assert guessing[DX] > 0.2  # a mean speed taken for the speed
    assert seeing[DX] < 0.02
    assert np.delete(guessing, DX).max() < 0.05  # which matters to the rest only where feet meet the floor


def test_another_world_predicts_worse_and_worse_the_longer_it_is_left_alone(weak):
    found = [judged("bullet", weak, steps) for steps in (1, 5, 10)]
    assert found[0].normalised > 1.5 * judged("bullet-power", weak, 1).normalised
    assert found[0].normalised < found[1].normalised < found[2].normalised
    assert found[0].l1 < found[1].l1 < found[2].l1
    assert found[0].median < found[1].median < found[2].median


def test_parameters_that_make_up_for_the_difference_predict_as_the_other_world_does(weak):
    weak = [episode for episode in weak if len(episode.actions) >= 10]
    half = np.zeros(7)
    half[6] = np.log(0.5) / np.log(HopperTask.parameters.motor)
    asked = []

    def parameters(obs, action):
        asked.append((obs, action))
        return half

    found = judged("bullet", weak, 5, parameters)
    np.testing.assert_allclose(found.rmse, judged("bullet-power", weak, 5).rmse)
    np.testing.assert_array_equal(asked[0][0], weak[0].states[0])
    np.testing.assert_array_equal([a for _, a in asked[:5]], weak[0].actions[:5])
    # then the recorded step before the next moment is asked for, and the moment itself
    np.testing.assert_array_equal([obs for obs, _ in asked[5:7]], weak[0].states[4:6])
    np.testing.assert_array_equal([a for _, a in asked[5:11]], weak[0].actions[4:10])


def test_parameters_are_forgotten_by_the_next_prediction(weak):
    world = world_of("bullet")
    moments = starts(world, weak[:1], 5)
    plain = predict(world, moments)
    odd = predict(world, moments, lambda obs, action: np.full(7, 0.5))
    assert not np.array_equal(plain, odd)
    np.testing.assert_array_equal(predict(world, moments), plain)
    np.testing.assert_array_equal(predict(world, moments, lambda obs, action: np.zeros(7)), plain)
    world.close()


def test_where_no_episode_is_as_long_nothing_is_known():
    found = errors(standstill([]), [], np.ones(2), 25)
    assert (found.count, len(found.rmse)) == (0, 2)
    assert np.isnan([found.normalised, found.median, found.l1]).all()


def test_errors_are_those_of_a_computation_by_hand():
    after = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    pose = Pose(np.zeros(6), np.zeros(6), 0.0)
    moments = [Start(row[None] - 1, pose, (), np.zeros((2, 3)), row) for row in after]
    predicted = after + np.array([[3.0, 0.0], [0.0, 2.0], [0.0, -1.0]])
    found = errors(predicted, moments, np.array([3.0, 1.0]), 2)
    assert (found.steps, found.count) == (2, 3)
    np.testing.assert_allclose(found.rmse, np.sqrt([9 / 3, 5 / 3]))
    assert found.normalised == pytest.approx(np.sqrt((1 + 4 + 1) / 6))
    assert found.median == pytest.approx(np.sqrt(0.5))
    assert found.l1 == pytest.approx(2.0)
    assert errors(standstill(moments), moments, np.ones(2), 2).l1 == 2.0
    assert errors(np.zeros((0, 2)), [], np.ones(2), 9).count == 0


def test_the_speeds_of_a_quadruped_whose_states_hold_none_come_from_the_steps_before():
    world, rng = make_world(LaikagoTask(), "bullet", QUIET), np.random.default_rng(0)
    states, actions, dim = [world.reset(4)[: world.task.state_dim]], [], world.task.state_dim
    for _ in range(20):
        actions.append(rng.uniform(-0.4, 0.4, 12).astype(np.float32))
        states.append(world.step(actions[-1], 1).obs[:dim])
    episodes = [Recorded(np.array(states, np.float32), np.array(actions))]
    moments = starts(world, episodes, 1)[9:]
    blind = [m._replace(before=()) for m in moments]
    scale = deviation(episodes)
    seeing, guessing = (errors(predict(world, some), some, scale, 1).normalised for some in (moments, blind))
    assert seeing < guessing / 4
    obs_dims = []
    predict(world, moments[:1], lambda obs, action: obs_dims.append(len(obs)) or np.zeros(world.num_parameters))
    assert set(obs_dims) == {dim * len(world.task.lags)}
    world.close()
