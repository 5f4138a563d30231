"""A rig that stands by itself: it outlives its clients, holds when they go, and lets in only whom it should."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.processes import family
from roboloop.envs import EnvConfig, make
from roboloop.envs.panda.admission import token_path
from roboloop.envs.panda.client import ProcessPanda
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.robot import Command, ConnectionCut, DriverDied
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.envs.registry import check_reachable
from tests.own import listening
from tests.rigs import PATIENCE_S, Standing, first_fault

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")


def config(address: str, task: str = "reach", **keys: Any) -> EnvConfig:
    return PandaEnvConfig(id=f"panda/{task}", panda=PandaConfig(driver="process", address=address, **keys))


def client(rig: Standing) -> ProcessPanda:
    return ProcessPanda("reach", PandaConfig(driver="process", address=rig.address))


def driver_of(env: Any) -> ProcessPanda:
    robot: ProcessPanda = env.world.robot
    return robot


def test_one_line_says_where_it_is_and_how_to_train_on_it(standing: Callable[..., Standing]) -> None:
    rig = standing()
    flags = f"--env panda/reach --env.panda.driver process --env.panda.address {rig.address}"
    assert flags in rig.line
    assert str(token_path(rig.port)) in rig.line


def test_only_this_machine_can_reach_it_and_only_its_user_can_read_the_token(standing: Callable[..., Standing]) -> None:
    rig = standing()
    assert listening(family(rig.process.pid)) == {("0100007F", rig.port)}
    assert stat.S_IMODE(token_path(rig.port).stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_takes_the_token_away(standing: Callable[..., Standing], number: int) -> None:
    rig = standing()
    with client(rig) as robot:
        robot.start()
        assert rig.end(number) == (0, "")
        assert not token_path(rig.port).exists()
        assert isinstance(first_fault(robot), DriverDied)


def test_a_client_killed_in_mid_motion_leaves_an_arm_that_stands_still(standing: Callable[..., Standing]) -> None:
    rig = standing("--env.panda.watchdog-s", 60)
    code = (
        "import numpy as np, sys, time\n"
        "from roboloop.envs import make\n"
        "from tests.envs.test_panda_rig import config\n"
        "env = make(config(sys.argv[1]))\n"
        "env.reset(0)\n"
        "while True:\n"
        "    env.step(np.array([0.0, 1.0, 0.0]))\n"
        "    print(abs(env.world.robot.read().joint_vel_rad_s).max(), env.world.robot.read().holds, flush=True)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code, rig.address], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    speed_rad_s, holds = [float(victim.stdout.readline().split()[i]) for _ in range(2) for i in (0, 1)][2:]
    assert speed_rad_s > 0.01
    victim.kill()
    victim.communicate()
    with client(rig) as robot:
        seen = robot.read()
        assert seen.holds == holds + 1  # at once: the watchdog would have taken a minute
        time.sleep(0.5)
        seen = robot.read()
        assert np.abs(seen.joint_vel_rad_s).max() < 0.01
        time.sleep(0.3)
        assert robot.read().ee_pos_m == pytest.approx(seen.ee_pos_m, abs=1e-3)
    env = make(config(rig.address))
    assert np.isfinite(env.reset(1)).all()
    env.step(np.ones(3))
    env.close()
    assert rig.process.poll() is None


def test_a_client_that_leaves_politely_is_not_counted_as_a_hold(standing: Callable[..., Standing]) -> None:
    rig = standing("--env.panda.watchdog-s", 0.2)
    for _ in range(2):
        with client(rig) as robot:
            robot.start()
            robot.send(Command())
            robot.hold()
            time.sleep(0.4)
            assert robot.read().holds == 0


def test_the_newest_client_has_the_arm_and_the_other_is_told_so(standing: Callable[..., Standing]) -> None:
    rig = standing()
    with client(rig) as first:
        first.start()
        with client(rig) as second:
            assert isinstance(first_fault(first), ConnectionCut)
            second.start()
            assert second.read().stopped == ""
        first.connect()
        first.start()


def test_a_client_numbers_its_wishes_anew_and_waits_for_its_own(standing: Callable[..., Standing]) -> None:
    rig = standing()
    with client(rig) as first:
        for _ in range(50):
            first.hold()
        first.start()
    with client(rig) as second:
        second.prepare(3)
        assert second._done == 1


def test_knocking_and_asking_for_another_task_do_not_disturb_whoever_is_at_work(
    standing: Callable[..., Standing],
) -> None:
    rig = standing()
    with client(rig) as robot:
        robot.start()
        check_reachable(config(rig.address))
        with pytest.raises(ConfigError, match=f"asks for panda/push, but the rig on {rig.address} is panda/reach"):
            make(config(rig.address, "push")).reset(0)
        robot.start()
        assert robot.read().holds == 0


def test_a_rig_that_was_started_anew_takes_its_client_back(standing: Callable[..., Standing]) -> None:
    rig = standing()
    env = make(config(rig.address))
    env.reset(0)
    rig.end(signal.SIGKILL)
    fault = first_fault(driver_of(env))
    assert isinstance(fault, DriverDied)
    assert f"nobody listens on {rig.address} any more" in str(fault)
    with pytest.raises(DriverDied):
        env.step(np.zeros(3))
    with pytest.raises(DriverDied, match=r"nobody answers on .*'roboloop rig panda/reach --port"):
        env.reset(1)
    standing(port=rig.port)
    assert np.isfinite(env.reset(1)).all()
    env.close()


def test_a_frozen_rig_is_named_and_taken_up_again_when_it_thaws(standing: Callable[..., Standing]) -> None:
    rig = standing()
    env = make(config(rig.address))
    env.reset(0)
    os.kill(rig.process.pid, signal.SIGSTOP)
    try:
        time.sleep(0.7)
        with pytest.raises(DriverDied, match="said nothing"):
            env.step(np.zeros(3))
        with pytest.raises(DriverDied, match="gave no answer"):
            env.reset(1)
    finally:
        os.kill(rig.process.pid, signal.SIGCONT)
    assert np.isfinite(env.reset(1)).all()
    env.close()


def test_nobody_there_is_one_line_that_says_how_to_start_a_rig(standing: Callable[..., Standing]) -> None:
    with socket.socket() as taken:  # and nobody else may listen on it meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = f"nobody answers on 127.0.0.1:{port} .* 'roboloop rig panda/reach --port"
        with pytest.raises(ConfigError, match=said):
            check_reachable(config(f"127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("token", "said"),
    [(None, "no token .*: No such file"), ("another one", "does not take the token in"), ("\xff", "does not take")],
)
def test_without_the_right_token_nobody_is_let_in(
    standing: Callable[..., Standing], token: str | None, said: str
) -> None:
    rig = standing()
    path = token_path(rig.port)
    path.unlink()
    if token is not None:
        path.write_text(token)
    with pytest.raises(ConfigError, match=said):
        check_reachable(config(rig.address))


def test_something_else_on_that_port_is_no_rig(standing: Callable[..., Standing]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        token_path(port).parent.mkdir(parents=True, exist_ok=True)
        token_path(port).write_text("x")
        answering = threading.Thread(target=lambda: stranger.accept()[0].sendall(b"HTTP/1.1 400 Bad Request"))
        answering.start()
        with pytest.raises(ConfigError, match="is no rig"):
            check_reachable(config(f"127.0.0.1:{port}"))
        answering.join()


def test_a_second_rig_on_the_same_port_is_one_line_and_harms_nothing(standing: Callable[..., Standing]) -> None:
    rig = standing()
    command = [sys.executable, "-m", "roboloop.cli", "rig", "panda/reach", "--port", str(rig.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    said = f"roboloop: --port {rig.port}: {os.strerror(errno.EADDRINUSE)}; 0 takes any free one\n"
    assert (done.returncode, done.stderr) == (2, said)
    with client(rig) as robot:
        robot.start()


def test_faults_are_those_of_the_serving_side(standing: Callable[..., Standing], tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text("env: {panda: {faults: [{kind: controller, at_s: 0.2}]}}")
    rig = standing("--config", file)
    with client(rig) as robot:
        robot.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while not robot.read().stopped and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert robot.read().stopped == "controller"
    with pytest.raises(ConfigError, match="give them to roboloop rig"):
        make(config(rig.address, faults=(FaultPlan(),)))


@pytest.mark.parametrize("address", ["127.0.0.1", "7317", "10.0.0.1:7317", "127.0.0.1:0", "127.0.0.1:70000", "x:y"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"127.0.0.1:PORT, a rig on this machine, not '{address}'")):
        make(config(address))


def test_an_address_is_of_one_arm_on_the_wall_clock() -> None:
    with pytest.raises(ConfigError, match="driver process, not virtual"):
        PandaConfig(address="127.0.0.1:7317").check()
    with pytest.raises(ConfigError, match="one arm is there, not 2"):
        PandaEnvConfig(num_envs=2, panda=PandaConfig(driver="process", address="127.0.0.1:7317")).check()
