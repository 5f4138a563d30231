"""A rig's socket is open to all of its machine: whatever comes over it, the arm holds and its clients are served."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, RobotFault
from roboloop.core.wire import decode, encode
from roboloop.envs.panda import drivers
from roboloop.envs.panda.admission import token_path
from roboloop.envs.panda.client import ProcessPanda
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.link import LONGEST, Garbled, Unpacker, command_to_data, pack, reading_to_data
from roboloop.envs.panda.robot import Command, Reading
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.envs.registry import check_reachable
from tests.rigs import Standing, first_fault

pytestmark = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")
WATCHDOG_S = 0.3
LOADED_S = 0.7
"""What a busy machine may add to what is done at once."""


def raw(header: str | bytes, behind: bytes = b"") -> bytes:
    """Return a frame with any header."""
    data = header.encode() if isinstance(header, str) else header
    body = len(data).to_bytes(8, "little") + data + behind
    return len(body).to_bytes(4, "little") + body


def plain(tree: str) -> bytes:
    return raw('{"arrays": [], "tree": ' + tree + "}")


BOMBS = [
    raw("[" * 60_000),
    raw('{"a":' * 12_000),
    raw('{"arrays": [["a", "O", [300000000]]], "tree": {}}'),
    raw('{"arrays": [["a", "<f8", [300000000]]], "tree": {}}'),
    raw('{"arrays": [["a", "|V1000000", [1000]]], "tree": {}}'),
    raw('{"arrays": [["a", "<f8", [-1]]], "tree": {"token": {"__tensor__": "a"}}}', bytes(8)),
    raw('{"arrays": [["a", "|u1", [8]]], "tree": {"__tensor__": "a", "__dtype__": "O"}}', bytes(8)),
    raw('{"arrays": {}, "tree": {"__tensor__": []}}'),
    (1 << 31).to_bytes(4, "little"),
    bytes(4),
    plain('{"token": ' + "9" * 4000 + "}"),
    plain('{"token": "' + "x" * 30_000 + '"}'),
    plain('{"token": "\\ud800"}'),
]
MOVE = Command(ee_pos_m=np.array([0.45, 0.1, 0.65]), ee_quat=np.array([0.0, 1.0, 0.0, 0.0]))


def client(rig: Standing) -> ProcessPanda:
    return ProcessPanda("reach", PandaConfig(driver="process", address=rig.address))


def dial(rig: Standing) -> socket.socket:
    return socket.create_connection(("127.0.0.1", rig.port), timeout=5.0)


def known(rig: Standing, *frames: bytes) -> socket.socket:
    """Return a line that has shown the token, and has then said something."""
    line = dial(rig)
    line.sendall(pack({"token": token_path(rig.port).read_text()}))
    assert line.recv(LONGEST)
    line.sendall(b"".join(frames))
    return line


def moving(number: Any = 1, **changes: Any) -> bytes:
    return pack({"do": "send", "number": number, "command": {**command_to_data(MOVE), **changes}})


TAKE = pack({"do": "take"})


def last_words(line: socket.socket) -> str:
    """Return why the rig hung up; it must."""
    unpacker, said, deadline_s = Unpacker(), None, time.monotonic() + 3.0
    with contextlib.suppress(ConnectionResetError):
        while data := line.recv(1 << 16):
            said = unpacker.feed_for_newest(data) or said
            assert time.monotonic() < deadline_s, "it goes on talking"
    return str(said.get("refused")) if said else ""


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def newest_after(robot: ProcessPanda, when_s: float) -> float:
    """Return how long after a moment a state of after it was seen."""
    while robot.read().arm_time_s < when_s:
        assert time.monotonic() < when_s + 5.0
        time.sleep(0.001)
    return time.monotonic() - when_s


def held_after(robot: ProcessPanda, holds: int, when_s: float) -> float:
    """Return how long after a moment the watchdog had held."""
    while robot.read().holds == holds:
        assert time.monotonic() < when_s + 5.0
        time.sleep(0.001)
    return time.monotonic() - when_s


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(rig: Standing) -> int:
    return len(os.listdir(f"/proc/{rig.process.pid}/fd"))


@pytest.fixture
def rig(standing: Callable[..., Standing]) -> Standing:
    return standing("--env.panda.watchdog-s", WATCHDOG_S)


def test_no_frame_without_the_token_delays_the_arm_or_its_watchdog(rig: Standing) -> None:
    with client(rig) as robot:
        robot.start()
        for bomb in BOMBS:
            holds, sent_s = robot.read().holds, time.monotonic()
            robot.send(MOVE)
            with dial(rig) as stranger, contextlib.suppress(ConnectionError):
                stranger.sendall(bomb)
                assert newest_after(robot, time.monotonic()) < LOADED_S, bomb[:80]
                assert held_after(robot, holds, sent_s) < WATCHDOG_S + LOADED_S, bomb[:80]
                assert is_closed(stranger)
    status = Path(f"/proc/{rig.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 1_000_000  # kB


WISHES = {
    "a seed without end": pack({"do": "prepare", "number": 2, "seed": float("inf")}),
    "a seed that is none": pack({"do": "prepare", "number": 2, "seed": float("nan")}),
    "a seed of 400 digits": pack({"do": "prepare", "number": 2, "seed": 10**400}),
    "a seed below zero": pack({"do": "prepare", "number": 2, "seed": -1}),
    "a number without end": moving(float("inf")),
    "a number of 4000 digits": plain('{"do": "hold", "number": ' + "9" * 3900 + "}"),
    "a number in words": moving("3"),
    "400 digits in a pose": moving(2, ee_pos_m=[10**400, 0, 0]),
    "a pose out of this world": moving(2, ee_pos_m=[1e300, 0, 0]),
    "no number in a pose": moving(2, ee_pos_m=[float("nan"), 0, 0]),
    "words in a pose": moving(2, ee_pos_m=["0.4", "0.1", "0.3"]),
    "a nested pose": moving(2, joint_pos_rad=[[1.0]] * 7),
    "a quaternion of nothing": moving(2, ee_quat=[0, 0, 0, 0]),
    "a pose as an array of objects": raw(
        '{"arrays": [["a", "O", [3]]], "tree": {"do": "send", "number": 2, "command": {"__tensor__": "a"}}}', bytes(24)
    ),
    "half a command": pack({"do": "send", "number": 2, "command": {"ee_pos_m": [0.4, 0.0, 0.3]}}),
    "no command": pack({"do": "send", "number": 2, "command": [1]}),
    "an unknown wish": pack({"do": "\x1b[2Jexplode", "number": 2}),
    "a wish that is an array": pack({"do": np.zeros(3), "number": 2}),
    "a list": pack([1, 2]),
    "half a frame, then another": moving()[:40] + moving(),
    "depth": raw("[" * 3000),
    "too long": raw('"' + "x" * LONGEST + '"'),
}


def test_no_message_with_the_token_stops_the_rig_and_each_is_answered_by_its_reason(rig: Standing) -> None:
    for name, message in WISHES.items():
        with known(rig, TAKE, moving(1), message) as line:
            why = last_words(line)
            assert why, name
            assert len(why) < 200, name
            assert why.isprintable(), name
        assert rig.process.poll() is None, name
    with client(rig) as robot:
        robot.start()
        seen = robot.read()
        assert seen.holds == len(WISHES)  # each had the arm in motion
        assert seen.is_finite()


@pytest.mark.parametrize("number", ["1", None, -1, 1.5])
def test_the_arm_does_not_move_for_a_message_that_is_refused(rig: Standing, number: Any) -> None:
    with client(rig) as robot:
        robot.start()
        before = robot.read().ee_pos_m
        with known(rig, TAKE, moving(number)) as line:
            last_words(line)
        time.sleep(0.5)
        robot.connect()
        assert robot.read().ee_pos_m == pytest.approx(before, abs=2e-3)


def test_strangers_are_sent_away_after_a_second_however_many_idle_or_slow(rig: Standing) -> None:
    before = descriptors(rig)
    with many_files(), contextlib.ExitStack() as lines, client(rig) as robot:
        robot.start()
        idle = [lines.enter_context(dial(rig)) for _ in range(1100)]
        slow, half_open = (lines.enter_context(dial(rig)) for _ in range(2))
        half_open.sendall(pack({"token": "x"})[:9])
        began_s, most = time.monotonic(), 0
        while time.monotonic() < began_s + 2.0:
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"\1")
            robot.send(Command())
            assert newest_after(robot, time.monotonic()) < LOADED_S
            most = max(most, descriptors(rig))
            time.sleep(0.1)
        assert robot.read().holds == 0
        assert most < before + 30
        for line in (slow, half_open, *idle):
            line.settimeout(0.5)
            assert is_closed(line)


def test_a_rig_without_free_descriptors_goes_on_and_takes_clients_in_again(rig: Standing) -> None:
    highest = max(map(int, os.listdir(f"/proc/{rig.process.pid}/fd")))
    with client(rig) as robot:
        robot.start()
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (highest + 4, highest + 4))
        with contextlib.ExitStack() as lines:
            for _ in range(20):
                lines.enter_context(dial(rig))
            time.sleep(0.5)
            assert newest_after(robot, time.monotonic()) < LOADED_S
    with client(rig) as robot:
        robot.start()


def test_of_many_with_the_token_the_oldest_go_but_never_the_one_that_has_the_arm(rig: Standing) -> None:
    with client(rig) as robot, contextlib.ExitStack() as lines:
        robot.start()
        idle = [lines.enter_context(known(rig)) for _ in range(12)]
        for line in idle[:5]:
            assert "more connections" in last_words(line)
        robot.start()
        assert robot.read().holds == 0
        idle[-1].sendall(TAKE)
        assert "another client" in str(first_fault(robot))


def test_who_moves_the_arm_and_never_reads_is_sent_away_and_the_arm_holds(rig: Standing) -> None:
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    deadline_s = time.monotonic() + 8.0
    with deaf, contextlib.suppress(ConnectionError):
        deaf.connect(("127.0.0.1", rig.port))
        deaf.sendall(pack({"token": token_path(rig.port).read_text()}) + TAKE)
        while time.monotonic() < deadline_s:
            deaf.sendall(moving())
            time.sleep(0.05)
    assert time.monotonic() < deadline_s
    with client(rig) as robot:
        assert robot.read().holds == 1


def test_who_learns_between_episodes_and_does_not_read_meanwhile_keeps_the_arm(rig: Standing) -> None:
    with client(rig) as robot:
        robot.start()
        time.sleep(4.0)  # all buffers are full after one
        assert newest_after(robot, time.monotonic()) < LOADED_S
        robot.start()


def test_a_flood_of_true_commands_makes_its_sender_wait_and_not_the_arm(rig: Standing) -> None:
    with known(rig, TAKE) as line:
        far = moving(1, ee_pos_m=[2.0, 2.0, 2.0]) + moving(2, ee_pos_m=[-2.0, 2.0, 0.0])  # both are much to compute
        rest, until_s, unpacker, moments_s = b"", time.monotonic() + 1.0, Unpacker(), []
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                rest = rest or far * 200
                rest = rest[line.send(rest, socket.MSG_DONTWAIT) :]
            moments_s += [said["reading"]["arm_time_s"] for said in unpacker.feed(line.recv(1 << 16))]
        assert max(np.diff(moments_s)) < 0.1
        line.shutdown(socket.SHUT_RDWR)
    with client(rig) as robot:
        robot.start()


STATE = {
    "reading": reading_to_data(
        Reading(0.0, 0.0, np.zeros(3), np.zeros(4), np.zeros(7), np.zeros(7), 0.0, np.zeros(4)),
    ),
    "done": 0,
    "late_s": 0.0,
}


def state(**changes: Any) -> bytes:
    return pack({**STATE, "reading": {**STATE["reading"], **changes}})  # type: ignore[dict-item]


@contextlib.contextmanager
def stand_in(answers: Iterator[bytes], greeting: bytes = b"", pause_s: float = 0.0) -> Iterator[str]:
    """Listen as a rig does, let one client in and answer as told; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        token_path(port).parent.mkdir(parents=True, exist_ok=True)
        token_path(port).write_text("x")

        def answer() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as line:
                line.settimeout(3.0)
                if greeting:
                    line.recv(LONGEST)
                    line.sendall(greeting)
                    line.recv(LONGEST)  # it takes the arm
                for each in answers:
                    line.sendall(each)
                    time.sleep(pause_s)
                while line.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{port}"
        thread.join()


GREETING = pack({"task": "reach", "pid": 1})


ANSWERS = {
    "a list for a task": pack({"task": ["reach"], "pid": 1}),
    "infinity": pack({"task": "reach", "pid": float("inf")}),
    "400 digits": pack({"task": "reach", "pid": 10**400}),
    "escape sequences": pack({"task": "\x1b[2J\nreach" * 100, "pid": 1}),
    "depth": raw("[" * 3000),
    "a huge array": raw('{"arrays": [["a", "O", [300000000]]], "tree": {}}'),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_a_stranger_answers_in_place_of_a_rig_is_one_plain_line(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with stand_in(iter([answer])) as address, pytest.raises(ConfigError) as error:
        check_reachable(PandaEnvConfig(id="panda/reach", panda=PandaConfig(driver="process", address=address)))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_a_rig_that_answers_byte_by_byte_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(drivers, "ANSWER_S", 0.5)
    began_s = time.monotonic()
    letters = (GREETING[i : i + 1] for i in range(40))
    with stand_in(letters, pause_s=0.1) as address:
        with pytest.raises(ConfigError, match="gave no answer"):
            check_reachable(PandaEnvConfig(id="panda/reach", panda=PandaConfig(driver="process", address=address)))
        assert time.monotonic() - began_s < 2.0


STATES = {
    "two for three": state(ee_pos_m=np.zeros(2)),
    "a list for an array": state(ee_pos_m=[0.0, 0.0, 0.0]),
    "words for a time": state(arm_time_s="soon"),
    "the future": state(arm_time_s=1e18),
    "escape sequences": state(stopped="\x1b[2J"),
    "a list for words": state(cause=["x"]),
    "infinity": state(holds=float("inf")),
    "no number": pack({**STATE, "done": float("nan")}),
    "no reading": pack({**STATE, "reading": 7}),
    "a list": pack([STATE]),
    "3900 digits": plain('{"reading": ' + "9" * 3900 + "}"),
}


@pytest.mark.parametrize("answer", STATES.values(), ids=STATES)
def test_a_state_that_is_none_is_a_fault_of_the_robot(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with stand_in(iter([answer]), GREETING) as address:
        robot = ProcessPanda("reach", PandaConfig(driver="process", address=address))
        with pytest.raises(RobotFault) as fault:
            robot.connect()
        robot.close()
    assert str(fault.value).isprintable()


def test_of_a_rig_that_never_stops_talking_a_bounded_part_is_taken_in() -> None:
    class Talker:
        came = 0

        def poll(self, _: float) -> bool:
            return True

        def recv(self, _: int) -> bytes:
            self.came += 1
            assert self.came < 64
            return state() * 1000

    talker: Any = Talker()
    robot = ProcessPanda("reach", PandaConfig())
    robot._socket = robot._arrival = talker
    robot._fault = None
    assert robot.read().holds == 0


@pytest.mark.parametrize("header", ["[" * 100_000, '{"arrays": [["a", "O", [300000000]]], "tree": {}}', "[]", "7", ""])
def test_what_our_own_processes_cannot_have_said_is_refused_before_memory_is_taken(header: str) -> None:
    with pytest.raises(ValueError, match=r"nested|message|Expecting"):
        decode(raw(header)[4:])
    with pytest.raises(Garbled):
        Unpacker().feed(raw(header))


def test_bytes_that_came_must_be_those_that_were_announced() -> None:
    message = encode({"a": np.arange(3.0), "n": [float("nan"), 10**30]})
    assert json.dumps(decode(message)["n"]) == f"[NaN, {10**30}]"
    for wrong in (message[:-1], message + b"\0", message[:20], message[:4], b""):
        with pytest.raises(ValueError, match=r"announced|came"):
            decode(wrong)
