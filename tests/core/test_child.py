"""What is said of a child that ends or hangs."""

import time

import pytest

from roboloop.core.child import Child


def close_and_end_late(channel):
    channel.close()
    time.sleep(3.0)
    raise SystemExit(3)


def hang(channel):
    channel.send("begun")
    time.sleep(100.0)


def test_a_child_that_takes_seconds_to_end_is_not_said_to_run_still():
    child = Child("child", "tests.core.test_child:close_and_end_late")
    with pytest.raises((EOFError, OSError)):
        child.channel.receive()
    assert child.how_it_ended() == "ended with exit code 3"


def test_a_child_that_hangs_is_said_to_hang_after_two_seconds():
    child = Child("child", "tests.core.test_child:hang")
    assert child.channel.receive() == "begun"
    begun_s = time.monotonic()
    assert child.how_it_ended().startswith("takes and sends no more messages but still runs")
    assert time.monotonic() - begun_s < 20.0
    child.kill()
