"""A robot's driver is a process on the wall clock: what happens when it, the line or the client goes away."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from roboloop.envs import make, scripted_policy
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.link import LONGEST, Garbled, Unpacker, command_from_data, command_to_data, pack
from roboloop.envs.panda.rig import RigEnv
from roboloop.envs.panda.robot import Command, ConnectionCut, ControllerStopped, DriverDied
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import GroupPlan
from roboloop.sample.serial import SerialSampler
from tests.own import is_alive, own_s
from tests.rigs import first_fault
from tests.sample.kit import LinearPolicy

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
TICK_S = 0.2
LOADED_S = 3.0
"""What a busy machine may take for something that is done at once."""


@pytest.fixture
def rig() -> Iterator[Callable[..., RigEnv]]:
    """Return a function that makes a rig whose driver is a process; all are closed at the end."""
    made: list[RigEnv] = []

    def start(**keys: Any) -> RigEnv:
        env = make(PandaEnvConfig(id="panda/reach", panda=PandaConfig(driver="process", **keys)))
        assert isinstance(env, RigEnv)
        made.append(env)
        return env

    yield start
    for env in made:
        env.close()


def driver(env: RigEnv) -> Any:
    return env.world.robot


def until(holds: Callable[[], bool], patience_s: float = LOADED_S) -> bool:
    deadline_s = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return holds()


def test_the_expert_reaches_its_goal_on_the_wall_clock(rig: Callable[..., RigEnv]) -> None:
    env, expert = rig(done_on_success=True), scripted_policy("panda/reach")
    obs, ended, info = env.reset(0), False, {"success": 0.0}
    began_s, steps = time.monotonic(), 0
    while not ended:
        action = expert.act(obs[None], np.zeros((1, 0)), False, np.random.default_rng(0)).action[0]
        obs, _, terminated, truncated, info = env.step(action)
        ended, steps = terminated or truncated, steps + 1
    assert info["success"] == 1.0
    assert time.monotonic() - began_s >= steps * TICK_S


def test_a_trainer_with_a_thousand_open_files_reads_its_robot_too(rig: Callable[..., RigEnv]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            files.enter_context(open(os.devnull))
        assert np.isfinite(rig().reset(0)).all()


def test_states_and_pictures_come_by_themselves_with_their_own_times(rig: Callable[..., RigEnv]) -> None:
    robot = driver(rig())
    robot.connect()
    arm, camera, end_s = set(), set(), time.monotonic() + 1.0
    while time.monotonic() < end_s:
        reading = robot.read()
        arm.add(reading.arm_time_s)
        camera.add(reading.camera_time_s)
        assert reading.arm_time_s <= robot.now_s()
        assert reading.camera_time_s <= reading.arm_time_s - 0.03 or len(camera) == 1
        time.sleep(0.001)
    assert len(arm) >= 40  # 200 are sent; a busy machine takes some of them together
    assert 10 <= len(camera) <= 35


def test_without_commands_the_watchdog_holds_the_arm_where_it_is(rig: Callable[..., RigEnv]) -> None:
    robot = driver(rig(watchdog_s=0.1))
    robot.connect()
    robot.start()
    target = robot.read().ee_pos_m + np.array([0.0, 0.0, 0.25])
    before = robot.read().holds
    robot.send(Command(ee_pos_m=target))
    assert until(lambda: robot.read().holds == before + 1)
    assert until(lambda: float(np.abs(robot.read().joint_vel_rad_s).max()) < 0.01)
    held = robot.read().ee_pos_m
    assert np.linalg.norm(target - held) > 0.05  # it would have gone all the way
    time.sleep(0.3)
    assert robot.read().ee_pos_m == pytest.approx(held, abs=0.005)
    assert robot.read().holds == before + 1  # once, not again and again


def test_commands_keep_the_watchdog_quiet(rig: Callable[..., RigEnv]) -> None:
    robot = driver(rig(watchdog_s=1.0))
    robot.connect()
    robot.start()
    before = robot.read().holds
    for _ in range(10):
        robot.send(Command())
        time.sleep(TICK_S)
    assert robot.read().holds == before


def test_a_killed_driver_is_named_within_a_tick_and_can_be_started_again(rig: Callable[..., RigEnv]) -> None:
    env = rig()
    env.reset(0)
    robot = driver(env)
    pid = robot.pid
    os.kill(pid, signal.SIGKILL)
    killed_s = own_s()
    fault = first_fault(robot)
    assert own_s() - killed_s < TICK_S + 0.5  # the driver ends a little later on a busy machine
    assert isinstance(fault, DriverDied)
    assert f"pid {pid}) was killed by SIGKILL" in str(fault)
    with pytest.raises(DriverDied):
        env.step(np.zeros(3))
    assert np.isfinite(env.reset(1)).all()
    assert robot.pid != pid
    env.step(np.zeros(3))


def test_a_cut_line_is_named_the_driver_holds_and_takes_us_back(rig: Callable[..., RigEnv]) -> None:
    env = rig(watchdog_s=60.0)
    env.reset(0)
    robot = driver(env)
    pid, before = robot.pid, robot.read().holds
    env.send(np.ones(3))
    robot._socket.shutdown(socket.SHUT_RDWR)
    fault = first_fault(robot)
    assert isinstance(fault, ConnectionCut)
    assert "broke" in str(fault)
    assert np.isfinite(env.reset(1)).all()
    assert robot.pid == pid
    assert robot.read().holds == before + 1  # at the cut: the watchdog would have taken a minute


def test_a_frozen_driver_does_not_block_us_and_is_taken_for_dead(rig: Callable[..., RigEnv]) -> None:
    env = rig()
    env.reset(0)
    robot = driver(env)
    os.kill(robot.pid, signal.SIGSTOP)
    try:
        time.sleep(0.7)
        asked_s = own_s()
        robot.read()
        assert own_s() - asked_s < 0.1
        with pytest.raises(DriverDied, match="said nothing"):
            env.observe()
        with pytest.raises(DriverDied, match="gave no answer"):
            env.reset(1)
        assert np.isfinite(env.reset(1)).all()
    finally:
        os.kill(robot.pid, signal.SIGCONT)


def test_a_fault_of_the_simulated_controller_arrives_by_its_name(rig: Callable[..., RigEnv]) -> None:
    env = rig(faults=(FaultPlan("controller", at_s=0.3),))
    env.reset(0)
    assert until(lambda: driver(env).read().stopped == "controller")
    with pytest.raises(ControllerStopped, match="told to stop"):
        env.step(np.zeros(3))


def test_strangers_are_not_let_in_and_noise_does_no_harm(rig: Callable[..., RigEnv]) -> None:
    robot = driver(rig())
    robot.connect()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", pack({"token": "guess"}), pack({"do": "hold", "number": 1}), pack([1])):
        with socket.create_connection(("127.0.0.1", robot._driver.port), timeout=LOADED_S) as stranger:
            stranger.sendall(noise)
            assert stranger.recv(1) == b""  # hung up on
    robot.start()
    assert robot.read().stopped == ""


@pytest.mark.parametrize("how", ["kill -9", "exit"])
def test_the_driver_dies_with_its_parent(how: str) -> None:
    code = (
        "import sys, time\n"
        "from roboloop.envs.panda.client import ProcessPanda\n"
        "from roboloop.envs.panda.config import PandaConfig\n"
        "robot = ProcessPanda('reach', PandaConfig())\n"
        "robot.connect()\n"
        "print(robot.pid, flush=True)\n"
        f"{'time.sleep(60)' if how == 'kill -9' else 'sys.exit(0)'}\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if how == "kill -9":
        assert is_alive(pid)
        parent.kill()
    parent.wait(timeout=20)
    parent.stdout.close()
    assert until(lambda: not is_alive(pid), 10.0)


def test_closing_leaves_no_process_and_a_second_close_is_no_harm(rig: Callable[..., RigEnv]) -> None:
    env = rig()
    env.reset(0)
    pid = driver(env).pid
    env.close()
    assert not is_alive(pid)
    env.close()
    with pytest.raises(ConnectionCut, match="not connected"):
        driver(env).read()


def test_messages_survive_any_cut_of_the_stream() -> None:
    message = {"do": "send", "number": 3, "pos": np.arange(3.0)}
    stream = pack(message) * 2
    for size in (1, 7, len(stream)):
        unpacker = Unpacker()
        got = [m for i in range(0, len(stream), size) for m in unpacker.feed(stream[i : i + size])]
        assert [m["number"] for m in got] == [3, 3]
        assert got[0]["pos"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "noise",
    [
        (LONGEST + 1).to_bytes(4, "little"),
        (12).to_bytes(4, "little") + b"not a message",
        (9).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"{",
    ],
)
def test_what_is_no_message_is_refused(noise: bytes) -> None:
    with pytest.raises(Garbled):
        Unpacker().feed(noise)


@pytest.mark.parametrize(
    "change",
    [
        {"ee_pos_m": np.array([0.4, np.nan, 0.3])},
        {"ee_pos_m": np.zeros(2)},
        {"joint_pos_rad": np.zeros(6)},
        {"gripper_open": "yes"},
        {"unknown": 1},
    ],
)
def test_a_driver_refuses_commands_that_no_arm_should_be_told(change: dict[str, Any]) -> None:
    data = {**command_to_data(Command(ee_pos_m=np.zeros(3))), **change}
    with pytest.raises(Garbled):
        command_from_data(data)


def test_a_sampler_closes_the_episode_before_the_fault_and_goes_on() -> None:
    env_config = PandaEnvConfig(id="panda/reach", panda=PandaConfig(faults=(FaultPlan("controller", 1.0, chance=0.5),)))
    env = make(env_config)
    shape = RolloutShape(env.spec, steps=25, num_envs=1)
    sampler = SerialSampler(lambda _: make(env_config), [GroupPlan(0, 0, 1, seed=3)], shape, max_faults=20)
    rollout = sampler.collect(LinearPolicy(6, 3, memory_size=0))
    faults = sampler.faults()
    sampler.close()
    assert faults
    assert all("told to stop" in fault for fault in faults)
    assert {end.length for end in rollout.episodes} == {4}  # one second is five steps: the fifth was dead
    assert all(end.lost for end in rollout.episodes)
    assert np.isfinite(rollout.obs).all()
