"""Pictures out of replay: shifts by hand, the same for a whole stack; what pictures cost in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roboloop.core.state import equal
from roboloop.core.types import Array, BatchSpec, EnvSpec, EpisodeEnd
from roboloop.data import journal as journal_files
from roboloop.data.journal import Journal
from roboloop.data.replay import Replay
from roboloop.data.shifts import shift
from roboloop.sample.buffers import RolloutShape

FRAME = (3, 12, 10)
PLAIN = EnvSpec(FRAME, np.dtype(np.uint8), (-1.0,), (1.0,), 100)
RECORD = EnvSpec((), np.dtype([("vector", np.float32, (2,)), ("image", np.uint8, FRAME)]), (-1.0,), (1.0,), 100)


def picture(number: int) -> Array:
    """Return a picture of which every pixel tells its place, and the first plane the number."""
    frame = np.arange(np.prod(FRAME), dtype=np.uint8).reshape(FRAME)
    frame[0] = number
    return frame


def observation(spec: EnvSpec, number: int) -> Array:
    obs = np.zeros((), spec.obs_dtype) if spec is RECORD else picture(number)
    if spec is RECORD:
        obs["image"], obs["vector"] = picture(number), number
    return obs


def fill(replay: Replay, spec: EnvSpec, lengths: list[int]) -> None:
    """Feed episodes that the clock cuts; pictures are numbered 20 * episode + t, rewards are 1."""
    for episode, length in enumerate(lengths):
        for t in range(length):
            rollout, number = RolloutShape(spec, steps=1, num_envs=1).allocate(), 20 * episode + t
            is_last = t == length - 1
            rollout.obs[0] = observation(spec, number)
            rollout.obs[1] = observation(spec, 20 * (episode + 1) if is_last else number + 1)
            rollout.reward[:], rollout.truncated[:] = 1.0, is_last
            if is_last:
                rollout.episodes.append(EpisodeEnd(0, 0, 1, 0.0, 0.0, t=0, last_obs=observation(spec, number + 1)))
            replay.add(rollout)


def make(spec: EnvSpec, stack: int = 1, n_step: int = 1, shift_px: int = 0, size: int = 64, rows: int = 40) -> Replay:
    return Replay(rows, spec, 1, BatchSpec(size, n_step, 0.5, frame_stack=stack, shift_px=shift_px), seed=0)


def test_a_picture_is_shifted_by_hand_and_its_edges_are_repeated() -> None:
    before = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], np.uint8)
    after = np.zeros((3, 3, 4), np.uint8)
    shift(np.stack([before] * 3), np.array([[1, -2], [-1, 1], [0, 0]]), after)
    assert after[0].tolist() == [[5, 5, 5, 6], [9, 9, 9, 10], [9, 9, 9, 10]]
    assert after[1].tolist() == [[2, 3, 4, 4], [2, 3, 4, 4], [6, 7, 8, 8]]
    assert (after[2] == before).all()


def test_shifts_equal_clipped_indices_for_every_offset() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (81, 2, 7, 6), dtype=np.uint8)
    offsets = np.array([(dy, dx) for dy in range(-4, 5) for dx in range(-4, 5)])
    shifted = np.zeros_like(pictures)
    shift(pictures, offsets, shifted)
    for before, after, (dy, dx) in zip(pictures, shifted, offsets, strict=True):
        rows, columns = (np.clip(np.arange(n) + d, 0, n - 1) for n, d in ((7, dy), (6, dx)))
        assert (after == before[:, rows][:, :, columns]).all()


def offset_of(frame: Array) -> tuple[int, int]:
    """Return by how much a frame was shifted: its middle tells."""
    place = int(frame[1, 6, 5]) - int(picture(0)[1, 6, 5])
    return (place + 5) // 10, (place + 5) % 10 - 5


@pytest.mark.parametrize("spec", [PLAIN, RECORD])
def test_a_stack_is_shifted_as_one_and_both_states_on_their_own(spec: EnvSpec) -> None:
    replay = make(spec, stack=3, shift_px=2)
    fill(replay, spec, [6, 4])
    batch = replay.sample()
    obs, next_obs = (b["image"] if spec is RECORD else b for b in (batch.obs, batch.next_obs))
    seen = [[offset_of(frame) for frame in stack] for stack in obs]
    assert all(len(set(stack)) == 1 for stack in seen)
    assert {stack[0] for stack in seen} <= {(dy, dx) for dy in range(-2, 3) for dx in range(-2, 3)}
    assert len({stack[0] for stack in seen}) > 10
    assert seen != [[offset_of(frame) for frame in stack] for stack in next_obs]
    if spec is RECORD:
        assert (batch.obs["vector"][..., 0] == obs[:, :, 0, 6, 5]).all()  # what is no picture stays


def test_without_a_reach_nothing_is_shifted_and_nothing_is_drawn() -> None:
    replay = make(PLAIN)
    fill(replay, PLAIN, [6])
    before = replay.sample().obs.copy()
    assert all(offset_of(frame) == (0, 0) for frame in before)
    other = make(PLAIN, shift_px=2)
    fill(other, PLAIN, [6])
    assert (other.sample().obs[:, 0, 6, 5] == before[:, 0, 6, 5]).all()  # rows are drawn first


def test_stacks_and_n_step_windows_stop_at_the_ends_of_episodes() -> None:
    replay = make(PLAIN, stack=3, n_step=2)
    fill(replay, PLAIN, [5, 4])
    batch = replay.sample()
    stacks, after = batch.obs[:, :, 0, 0, 0].tolist(), batch.next_obs[:, :, 0, 0, 0].tolist()
    for stack, then, reward, discount in zip(stacks, after, batch.reward, batch.discount, strict=True):
        episode, t = divmod(stack[-1], 20)
        length = [5, 4][episode]
        steps = min(2, length - t)
        assert stack == [20 * episode + max(0, t - back) for back in (2, 1, 0)]
        assert then == [20 * episode + max(0, t + steps - back) for back in (2, 1, 0)]
        assert (reward, discount) == ((1.5, 0.25) if steps == 2 else (1.0, 0.5))


SEEN = EnvSpec((3, 64, 64), np.dtype(np.uint8), (-1.0,) * 6, (1.0,) * 6, 100)
CLOTH_OBS = np.dtype([("image", np.uint8, (3, 64, 64)), ("picks", np.float16, (96, 2))])
CLOTH = EnvSpec((), CLOTH_OBS, (-1.0,) * 5, (1.0,) * 5, 30)
PAIRS_OBS = np.dtype([("image", np.uint8, (3, 64, 64)), ("picks", np.float16, (64, 4))])
TWO_HANDS = EnvSpec((), PAIRS_OBS, (-1.0,) * 10, (1.0,) * 10, 20)


@pytest.mark.parametrize(("spec", "stack"), [(SEEN, 3), (CLOTH, 1), (TWO_HANDS, 1)], ids=["frames", "picks", "pairs"])
def test_a_transition_costs_hardly_more_than_its_frame(spec: EnvSpec, stack: int) -> None:
    replay = Replay(1000, spec, 1, BatchSpec(8, 3, 0.99, frame_stack=stack), seed=0)
    held = sum(column.nbytes for column in replay._columns().values())
    assert held / 1000 <= 1.05 * 3 * 64 * 64


@pytest.mark.parametrize("spec", [PLAIN, RECORD])
def test_pictures_come_back_from_the_journal_and_the_next_batch_is_the_same(spec: EnvSpec, tmp_path: Path) -> None:
    first, second = (make(spec, stack=3, n_step=2, shift_px=2, rows=30) for _ in range(2))
    journal = Journal(tmp_path, 2000)
    first.attach(journal)
    fill(first, spec, [9, 9, 9, 5])  # the ring has wrapped, and the journal has several segments
    first.sample()
    frontier, state = first.commit(), first.state()
    second.load(state, journal_files.read(tmp_path, frontier))
    for _ in range(2):
        a, b = first.sample(), second.sample()
        assert equal(a._asdict(), b._asdict())


def test_pictures_are_compressed_on_disk_and_numbers_lie_there_as_they_are(tmp_path: Path) -> None:
    columns = {"obs": np.stack([picture(i) for i in range(200)]), "reward": np.arange(200, dtype=np.float32)}
    journal = Journal(tmp_path, 10**9)
    journal.append(columns, {"rows_per_env": [200]})
    frontier = journal.commit()
    assert frontier.offset < columns["obs"].nbytes / 4
    ((read, info),) = journal_files.read(tmp_path, frontier)
    assert info == {"rows_per_env": [200]}
    assert equal(read, columns)
