import os
import signal
import time

import numpy as np
import pytest

from roboloop.core.child import Child
from roboloop.core.memory import ByteLayout, SharedMemory
from roboloop.core.state import equal, join, split
from roboloop.core.wire import decode, encode
from tests.own import is_alive

RECORD = np.dtype([("image", "u1", (2, 3)), ("vector", "<f4", (4,))])


def child_echo(channel, *fds):
    """What the children of these tests run."""
    while True:
        message = channel.receive()
        if message == "raise":
            raise ValueError("asked to")
        if message == "hang":
            time.sleep(3600)
        if message == "memory":
            view = ByteLayout({"x": ((4,), np.dtype(np.int64))}).views(SharedMemory(fds[0], 64))["x"]
            view[:] = 7
        channel.send(message)


@pytest.fixture
def child():
    memory = SharedMemory.create(64)
    child = Child("child", "tests.core.test_wire:child_echo", [memory.fd])
    child.memory = memory
    yield child
    child.kill()


def test_messages_survive_the_wire_bit_for_bit():
    record = np.zeros(3, RECORD)
    record["vector"] = np.arange(12).reshape(3, 4)
    message = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": [1, None, "x", {"c": np.array(True)}],
        "n": np.float32(0.5),
        "none": np.zeros((0, 2), np.float32),
        "record": record,
    }
    assert equal(decode(encode(message)), message)


def test_records_are_split_into_bytes_and_joined_again():
    record = np.zeros((2, 2), RECORD)
    record["image"] = 9
    tensors, tree = split({"obs": record})
    assert tensors["obs"].dtype == np.uint8
    assert equal(join(tensors, tree), {"obs": record})


def test_a_child_answers_and_ends_when_we_hang_up(child):
    child.channel.send({"x": 1})
    assert child.channel.receive() == {"x": 1}
    child.stop()
    assert not child.is_alive()


def test_a_child_shares_our_memory(child):
    child.channel.send("memory")
    child.channel.receive()
    assert ByteLayout({"x": ((4,), np.dtype(np.int64))}).views(child.memory)["x"].tolist() == [7] * 4


def test_a_child_that_raises_leaves_its_traceback(child):
    child.channel.send("raise")
    with pytest.raises(EOFError):
        child.channel.receive()
    assert "ended with exit code 1" in child.how_it_ended()
    assert "ValueError: asked to" in child.how_it_ended()


def test_a_killed_child_names_the_signal(child):
    child.channel.send(1)
    child.channel.receive()
    os.kill(child.pid, signal.SIGKILL)
    assert child.how_it_ended() == "was killed by SIGKILL"


def test_a_hanging_child_shows_its_stack(child):
    child.channel.send(1)
    child.channel.receive()
    child.channel.send("hang")
    time.sleep(0.1)
    assert "child_echo" in child.where_it_hangs()


def test_a_child_dies_with_its_parent_even_while_it_hangs():
    code = (
        "from roboloop.core.child import Child\n"
        "import os, sys, time\n"
        "child = Child('c', 'tests.core.test_wire:child_echo')\n"
        "child.channel.send(1); child.channel.receive(); child.channel.send('hang')\n"
        "print(child.pid, flush=True); time.sleep(3600)\n"
    )
    import subprocess
    import sys

    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline_s = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_single_record_keeps_its_fields_and_its_shape():
    records = np.zeros(4, RECORD)
    records["vector"] = np.arange(16).reshape(4, 4)
    for record in (records[1], np.array(records[1]), records[1:3]):
        again = decode(encode({"last_obs": record}))["last_obs"]
        assert again.dtype == RECORD
        assert again.shape == np.shape(record)
        assert again.tobytes() == record.tobytes()
