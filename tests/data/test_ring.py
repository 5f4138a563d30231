"""The ring keeps order, never overwrites what waits, and refuses instead of waiting."""

from collections import deque

import numpy as np
import pytest

from roboloop.data.ring import Ring
from tests.data.recording import SPEC


def fill(packet, mark):
    for array in packet:
        array.view(np.uint8)[...] = mark % 251
    packet.env[:] = mark


def test_packets_come_out_as_they_went_in_over_many_turns_of_the_ring():
    ring, rng, waiting = Ring(20_000, SPEC), np.random.default_rng(0), deque()
    refused = 0
    for mark in range(5_000):
        shape = tuple(rng.integers(1, 9, 3).tolist())
        packet = ring.reserve(*shape)
        if packet is None:
            refused += 1
        else:
            fill(packet, mark)
            ring.publish()
            waiting.append((mark, shape))
        for _ in range(int(rng.integers(0, 3))):
            taken = ring.peek()
            if not waiting:
                assert taken is None
                break
            mark_in, (steps, columns, ends) = waiting.popleft()
            assert taken.env.tolist() == [mark_in] * columns
            assert taken.action.shape == (steps, columns, 2)
            assert (taken.obs.view(np.uint8) == mark_in % 251).all()
            assert (taken.last_obs.view(np.uint8) == mark_in % 251).all()
            assert len(taken.ends) == ends
            ring.release()
    assert 50 < refused < 4_000


def test_what_is_reserved_is_not_seen_before_it_is_published():
    ring = Ring(20_000, SPEC)
    ring.reserve(4, 2, 1)
    assert ring.peek() is None
    ring.publish()
    assert ring.peek() is not None


def test_a_full_ring_refuses_and_an_emptied_one_takes_again():
    ring = Ring(20_000, SPEC)
    while ring.reserve(8, 4, 0) is not None:
        ring.publish()
    assert ring.use > 0.8
    while ring.peek() is not None:
        ring.release()
    assert ring.use == 0
    assert ring.reserve(8, 4, 0) is not None


def test_a_commit_is_due_once_all_that_came_before_it_has_been_taken():
    ring = Ring(20_000, SPEC)
    ring.reserve(2, 1, 0)
    ring.publish()
    ring.ask_for_commit()
    assert not ring.commit_is_due(since=0)
    ring.peek()
    ring.release()
    asked = ring.commit_is_due(since=0)
    assert asked
    assert not ring.commit_is_due(since=asked)


@pytest.mark.parametrize("size", [1, 3])
def test_both_sides_see_the_same_memory(size):
    ours = Ring(20_000, SPEC)
    theirs = Ring(20_000, SPEC, ours.memory)
    fill(ours.reserve(2, size, 1), 7)
    ours.publish()
    assert theirs.peek().env.tolist() == [7] * size
    theirs.release()
    assert ours.use == 0
