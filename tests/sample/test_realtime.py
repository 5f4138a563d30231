"""A robot in real time: the order of a tick, deadlines, and nothing stored that did not happen."""

from __future__ import annotations

import os
import signal
import socket
import time
from importlib.util import find_spec

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, WorkerLost
from roboloop.core.types import Decision, EnvSpec
from roboloop.data.rollouts import COLUMNS
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import Outcome
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.robot import Overrun
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.envs.registry import make
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.group import plans
from roboloop.sample.pilot import Pilot, real_time_env
from roboloop.sample.realtime import InlineSampler, PilotedSampler
from roboloop.sample.serial import SerialSampler
from tests.sample.kit import SteadyPolicy

needs_panda = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
SPEC = EnvSpec((1,), np.dtype(np.float32), (-1.0,), (1.0,), 5)


class Metronome:
    """A robot of one number on a clock that the test moves; writes down who was called when."""

    period_s, spec, is_simulated = 0.2, SPEC, True

    def __init__(self, horizon=5):
        self.time_s, self.calls, self.horizon, self.stale = 0.0, [], horizon, set()
        self.held = 0

    def now_s(self):
        return self.time_s

    def wait_until(self, time_s):
        self.calls.append("wait")
        self.time_s = max(self.time_s, time_s)

    def begin(self, seed):
        self.count = 0
        return np.zeros(1, np.float32)

    def first_look(self):
        return np.zeros(1, np.float32)

    def send(self, action):
        self.calls.append("send")
        return np.clip(action, -0.5, 0.5)

    def observe(self):
        self.calls.append("observe")
        self.count += 1
        truncated = self.count == self.horizon
        obs = np.float32([self.count])
        return Outcome(obs, 1.0, False, truncated, 0.0, is_fresh=self.count not in self.stale)

    def hold(self):
        self.held += 1

    def close(self):
        pass


class Always:
    """One action, for ever; every decision takes a millisecond of the robot's clock."""

    memory_size, version = 0, 7

    def __init__(self, robot):
        self.robot = robot

    def act(self, obs, memory, explore, rng):
        self.robot.calls.append("act")
        self.robot.time_s += 0.001
        return Decision(np.full((1, 1), 0.9, np.float32), memory)


def pilot(robot, max_misses=3):
    made = Pilot(robot, RolloutShape(SPEC, 1, 1), seed=0, max_misses=max_misses)
    made.make_ready()
    made.begin()
    return made


def test_between_the_look_and_the_command_lies_the_policy_and_nothing_else():
    robot = Metronome()
    led = pilot(robot)
    for _ in range(2):
        led.tick(Always(robot))
    assert robot.calls == ["wait", "act", "send", "wait", "observe", "act", "send"]
    assert led.ticks[1].obs_to_act_s == pytest.approx(0.001)
    assert led.ticks[1].forward_s == pytest.approx(0.001)


def test_just_before_the_deadline_a_policy_on_the_wall_clock_decides_for_nothing():
    robot = Metronome()
    robot.is_simulated = False
    led = pilot(robot)
    led.tick(Always(robot))  # the first is due at once: there is no time to warm up
    robot.calls.clear()
    led.tick(Always(robot))
    assert robot.calls == ["wait", "act", "wait", "observe", "act", "send"]
    assert led.ticks[1].lateness_s == pytest.approx(0)
    robot.time_s += 0.1995  # in the middle of the last millisecond: too late for it
    robot.calls.clear()
    led.tick(Always(robot))
    assert robot.calls == ["wait", "wait", "observe", "act", "send"]


def test_a_step_holds_the_action_really_sent_and_what_the_next_tick_saw():
    robot = Metronome(horizon=3)
    led = pilot(robot)
    while led.is_running:
        led.tick(Always(robot))
    rows = [step.rollout for step in led.steps]
    assert [(r.obs[0, 0, 0], r.obs[1, 0, 0]) for r in rows] == [(0, 1), (1, 2), (2, 3)]
    assert [r.action[0, 0, 0] for r in rows] == [0.5] * 3
    assert [step.is_first for step in led.steps] == [True, False, False]
    assert [r.version[0] for r in rows] == [7] * 3
    (end,) = rows[-1].episodes
    assert (end.length, end.episode_return, end.success, end.last_obs[0]) == (3, 3.0, 0.0, 3)
    assert rows[-1].truncated[0, 0]
    assert robot.held == 1  # the robot stands before anything else is done
    assert led.episode == 1


def test_deadlines_are_absolute_and_do_not_drift_with_the_work():
    robot = Metronome()
    led = pilot(robot)
    for _ in range(4):
        led.tick(Always(robot))
        robot.time_s += 0.15  # training in the slack
    assert [t.deadline_s for t in led.ticks] == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert [t.lateness_s for t in led.ticks] == pytest.approx([0.0] * 4)


def test_a_missed_deadline_is_skipped_without_a_burst():
    robot = Metronome(horizon=9)
    led = pilot(robot)
    led.tick(Always(robot))
    robot.time_s += 0.5  # over the deadlines at 0.2 and 0.4
    led.tick(Always(robot))
    led.tick(Always(robot))
    assert [t.deadline_s for t in led.ticks] == pytest.approx([0.0, 0.4, 0.6])
    assert led.missed == 1
    assert led.ticks[1].lateness_s == pytest.approx(0.101)


def test_too_many_misses_in_a_row_let_the_robot_hold():
    robot = Metronome(horizon=99)
    led = pilot(robot, max_misses=3)
    for late_s in (0.5, 0.0, 0.5, 0.5, 0.5):  # one alone is forgiven when the next is in time
        led.tick(Always(robot))
        robot.time_s += late_s
    with pytest.raises(Overrun, match="4 deadlines in a row"):
        led.tick(Always(robot))
    assert robot.held == 1
    assert not led.is_running


def test_steps_seen_with_something_old_wait_for_something_new():
    robot = Metronome(horizon=9)
    robot.stale = {2, 3}
    led = pilot(robot)
    counts = []
    for _ in range(5):
        led.tick(Always(robot))
        counts.append(len(led.steps))
    assert counts == [0, 1, 1, 1, 4]


def test_steps_seen_with_something_old_are_dropped_when_the_episode_is_given_up():
    robot = Metronome(horizon=9)
    robot.stale = {2, 3}
    led = pilot(robot)
    for _ in range(4):
        led.tick(Always(robot))
    led.give_up()
    assert [step.rollout.obs[1, 0, 0] for step in led.steps] == [1]


def test_an_environment_that_waits_for_us_has_no_real_time():
    with pytest.raises(ConfigError, match="is for robots: 'Pendulum-v1' is none"):
        real_time_env(make(EnvConfig(id="gym/Pendulum-v1")))


PANDA = PandaEnvConfig(id="panda/reach", panda=PandaConfig(episode_s=2.0))


def inline(env=PANDA, seed=3, **keys):
    made = make(env)
    return InlineSampler(
        real_time_env(made), RolloutShape(made.spec, 1, 1), SampleConfig(real_time="inline", **keys), seed
    )


def piloted(policy, env=PANDA, seed=3, **keys):
    shape = RolloutShape(make(env).spec, 1, 1)
    return PilotedSampler(env, shape, SampleConfig(real_time="process", **keys), seed, (policy,))


def rows(sampler, policy, count):
    return [sampler.collect(policy) for _ in range(count)]


def assert_same(ours, others):
    for a, b in zip(ours, others, strict=True):
        ended = bool(a.episodes)
        for name in COLUMNS:
            mine, theirs = getattr(a, name), getattr(b, name)
            if name == "obs" and ended:  # what follows an end belongs to the next episode, and is not known yet
                mine, theirs = mine[:1], theirs[:1]
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
        assert repr(a.episodes) == repr(b.episodes)
        assert a.cut == b.cut


@needs_panda
def test_on_simulated_time_the_pilot_gives_the_serial_samplers_steps_bit_for_bit():
    shape = RolloutShape(make(PANDA).spec, 1, 1)
    serial = SerialSampler(lambda _: make(PANDA), plans(1, 1, 3), shape)
    policy = SteadyPolicy(6, 3)
    assert_same(rows(inline(), policy, 25), rows(serial, policy, 25))


@needs_panda
def test_a_pilot_in_a_process_of_its_own_gives_the_same_steps():
    policy = SteadyPolicy(6, 3)
    policy.improve()  # the weights must travel
    sampler = piloted(policy)
    try:
        assert_same(rows(sampler, policy, 25), rows(inline(), policy, 25))
        told = sampler.timing()
        assert told["sample/lateness_max_ms"] == pytest.approx(0, abs=1e-6)
        assert told["sample/lateness_ticks"][0] == sum(told["sample/obs_to_act_ticks"]) > 0
    finally:
        sampler.close()


@needs_panda
@pytest.mark.parametrize(
    ("kind", "name"),
    [("controller", "ControllerStopped"), ("limit", "LimitHit"), ("camera", "CameraStale"), ("nan", "BadReading")],
)
def test_every_fault_has_its_name_and_the_next_episode_begins_anew(kind, name):
    env = PandaEnvConfig(id="panda/reach", panda=PandaConfig(episode_s=2.0, faults=(FaultPlan(kind, at_s=1.0),)))
    sampler = inline(env)
    got = rows(sampler, SteadyPolicy(6, 3), 6)
    (said,) = sampler.faults()
    assert said.startswith(name)
    assert sum(r.cut == (0,) for r in got) == 1
    assert np.isfinite([r.obs for r in got]).all()


class Divergent(SteadyPolicy):
    """Loses its mind after a few decisions."""

    def __init__(self, healthy):
        super().__init__(6, 3)
        self.left = healthy

    def act(self, obs, memory, explore, rng):
        self.left -= 1
        decision = super().act(obs, memory, explore, rng)
        return decision if self.left >= 0 else decision._replace(action=np.full((1, 3), np.nan, np.float32))


@needs_panda
def test_a_policy_that_gives_no_number_moves_nothing_and_its_steps_are_kept():
    sampler = inline(restarts=0)
    robot = sampler._pilot.env.world.robot
    policy = Divergent(healthy=5)
    kept = rows(sampler, policy, 4)
    with pytest.raises(WorkerLost, match=r"BadAction: an action is 3 finite numbers, got \[nan, nan, nan\]: holding"):
        sampler.collect(policy)
    before = robot.read().ee_pos_m.copy()
    robot.advance(0.5)
    assert np.abs(robot.read().ee_pos_m - before).max() < 0.01  # it stands where it was held
    assert len(kept) == 4
    assert sampler.state()["is_open"]
    assert len(sampler.rest()) == 1  # the step that was whole when the policy failed


@needs_panda
def test_a_line_that_is_cut_is_named_and_taken_up_again():
    env = PandaEnvConfig(id="panda/reach", panda=PandaConfig(driver="process", hz=20, episode_s=1.0))
    sampler = inline(env)
    try:
        policy = SteadyPolicy(6, 3)
        rows(sampler, policy, 5)
        sampler._pilot.env.world.robot._socket.shutdown(socket.SHUT_RDWR)
        got = rows(sampler, policy, 25)
        (said,) = sampler.faults()
        assert said.startswith("ConnectionCut")
        assert [r.cut for r in got].count((0,)) == 1
        assert sum(len(r.episodes) for r in got) == 1
    finally:
        sampler.close()


@needs_panda
@pytest.mark.parametrize("how", ["inline", "piloted"])
def test_a_fault_is_named_its_dead_steps_are_dropped_and_the_episode_is_cut(how):
    env = PandaEnvConfig(id="panda/reach", panda=PandaConfig(episode_s=2.0, faults=(FaultPlan("camera", at_s=1.0),)))
    policy = SteadyPolicy(6, 3)
    sampler = inline(env) if how == "inline" else piloted(policy, env)
    try:
        got = rows(sampler, policy, 8)
        assert [r.cut for r in got] == [()] * 5 + [(0,)] + [()] * 2  # five whole steps of each second, then the cut
        said, *more = sampler.faults()  # a pilot in its own process may have come to the next fault already
        assert "CameraStale" in said
        assert "the robot holds" in said
        assert sampler.stats() == {"sample/robot_faults": 1.0 + len(more)}
    finally:
        sampler.close()


@needs_panda
def test_a_robot_that_fails_again_and_again_ends_the_run():
    env = PandaEnvConfig(id="panda/reach", panda=PandaConfig(faults=(FaultPlan("nan", at_s=0.5),)))
    with pytest.raises(WorkerLost, match=r"BadReading[^$]*3 faults in a row are more than sample.restarts"):
        rows(inline(env, restarts=2), SteadyPolicy(6, 3), 60)


@needs_panda
def test_resting_brings_the_robot_to_a_stand_and_loses_no_step():
    policy = SteadyPolicy(6, 3)
    sampler = piloted(policy)
    try:
        taken = rows(sampler, policy, 3)
        time.sleep(0.2)  # the pilot is on simulated time and far ahead by now
        rest = sampler.rest()
        assert len(rest) >= 7  # the episode's last steps at least
        assert_same([*taken, *rest][:10], rows(inline(), policy, 10))
        assert sampler.rest() == []
        state = sampler.state()
    finally:
        sampler.close()
    assert state["is_open"] == (not rest[-1].episodes)


@needs_panda
def test_a_loaded_sampler_goes_on_with_the_next_episode_and_cuts_the_one_that_ran():
    policy = SteadyPolicy(6, 3)
    first = inline()
    rows(first, policy, 13)
    second = inline()
    second.load(first.state())
    after = second.collect(policy)
    assert after.cut == (0,)
    whole = rows(inline(), policy, 21)
    np.testing.assert_array_equal(after.obs, whole[20].obs)  # episode 2


@needs_panda
def test_a_killed_pilot_is_replaced_and_what_it_had_handed_over_is_kept():
    policy = SteadyPolicy(6, 3)
    sampler = piloted(policy)
    try:
        rows(sampler, policy, 3)
        time.sleep(0.1)
        os.kill(sampler.pid, signal.SIGKILL)
        got = rows(sampler, policy, 25)
        said = " ".join(sampler.faults())
        assert "was killed by SIGKILL" in said
        assert sum(r.cut == (0,) for r in got) + sum(len(r.episodes) for r in got) >= 2
        assert sampler.stats() == {"sample/robot_faults": 1.0}
    finally:
        sampler.close()
