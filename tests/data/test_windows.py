"""Windows never cross an episode's edge, are drawn evenly over steps, and hold what was recorded."""

import numpy as np
import pytest

from roboloop.core.errors import DataError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.data.transitions import every_kth
from roboloop.data.windows import WindowSampler
from tests.data.kit import episode_of, fill, schema_of

LENGTHS = [1, 3, 4, 5, 7, 8, 12, 40]


@pytest.fixture(params=["numbers", "pictures", "records"])
def data(tmp_path, request):
    with StoreWriter(tmp_path, schema_of(request.param), 4000) as writer:
        for number, length in enumerate(LENGTHS):
            writer.append(*episode_of(number, length, request.param))
    return Dataset.open(tmp_path)


def expected(episode, begin, length):
    """Return what a window should hold, by hand."""
    count = min(length, len(episode.reward) - begin)
    pad = length - count
    span = slice(begin, begin + count)
    obs = np.zeros((length, *episode.obs.shape[1:]), episode.obs.dtype)
    obs[pad:] = episode.obs[span]
    action = np.zeros((length, 2), np.float32)
    action[pad:] = episode.action[span]
    togo = [np.float32(episode.raw_reward[t:].sum(dtype=np.float64)) for t in range(begin, begin + count)]
    return obs, action, [0] * pad + togo, [0] * pad + list(range(begin, begin + count)), [False] * pad + [True] * count


@pytest.mark.parametrize("length", [1, 3, 6, 11])
@pytest.mark.parametrize("cache_bytes", [0, 20_000, 1 << 30])
def test_a_window_holds_what_was_recorded_and_zeros_in_front(data, length, cache_bytes):
    windows = WindowSampler(data, length, batch=16, seed=0, cache_bytes=cache_bytes)
    episodes = [data.episode(row) for row in range(len(data))]
    seen = set()
    for _ in range(60):
        batch = windows.sample()
        for b in range(16):
            count = int(batch.mask[b].sum())
            # raw rewards are random, so the first return to go tells episode and step
            first, begin = batch.return_to_go[b, length - count], int(batch.t[b, length - count])
            (row,) = [
                r for r, e in enumerate(episodes)
                if begin < len(e.reward) and np.isclose(e.raw_reward[begin:].sum(), first, atol=1e-5)
            ]  # fmt: skip
            obs, action, togo, t, mask = expected(episodes[row], begin, length)
            assert batch.obs[b].tobytes() == obs.tobytes()
            assert batch.action[b].tobytes() == action.tobytes()
            np.testing.assert_allclose(batch.return_to_go[b], togo, atol=1e-5)
            assert batch.t[b].tolist() == t
            assert batch.mask[b].tolist() == mask
            seen.add((row, begin))
    assert len(seen) == sum(LENGTHS)


def test_windows_begin_at_every_step_equally_often(data):
    windows = WindowSampler(data, length=4, batch=2000, seed=3)
    begins = np.zeros(40)
    for _ in range(20):
        batch = windows.sample()
        np.add.at(begins, batch.t[np.arange(2000), batch.mask.argmax(1)], 1)
    share = np.array([sum(length > t for length in LENGTHS) for t in range(40)]) / sum(LENGTHS)
    np.testing.assert_allclose(begins / begins.sum(), share, atol=4 * np.sqrt(0.1 / 40_000))


def test_steps_that_only_lead_up_to_something_are_never_drawn(tmp_path):
    with StoreWriter(tmp_path, schema_of("numbers"), 4000) as writer:
        for number, length in enumerate((4, 7, 5)):
            writer.append(*episode_of(number, length, "numbers"))
    data = Dataset.open(tmp_path)
    windows = WindowSampler(data, 1, batch=500, seed=0, skip=3)
    batch = windows.sample()
    wanted = np.concatenate([data.episode(row).action[3:] for row in range(3)])
    assert sorted({tuple(a) for a in batch.action[:, 0].tolist()}) == sorted(tuple(a) for a in wanted.tolist())
    assert set(batch.t[:, 0].tolist()) == {3, 4, 5, 6}
    with pytest.raises(DataError, match=r"an episode of 4 steps in .* has nothing after 4 steps"):
        WindowSampler(data, 1, batch=8, seed=0, skip=4)


def test_the_return_to_go_of_a_first_step_is_the_return_on_record(data):
    windows = WindowSampler(data, length=3, batch=200, seed=0)
    batch = windows.sample()
    first = batch.return_to_go[(batch.t == 0) & batch.mask]
    assert len(first) > 5
    assert all(np.isclose(value, data.table["episode_return"], atol=1e-5).any() for value in first)


def test_draws_go_on_after_a_resume_and_do_not_depend_on_the_cache(data):
    a, b = WindowSampler(data, 5, 8, seed=1), WindowSampler(data, 5, 8, seed=1, cache_bytes=0)
    for _ in range(5):
        a.sample()
    state = a.state()
    b.load(state)
    for _ in range(5):
        x, y = a.sample(), b.sample()
        assert all(one.tobytes() == other.tobytes() for one, other in zip(x, y, strict=True))


def test_only_the_chosen_episodes_are_drawn(data):
    windows = WindowSampler(data, length=50, batch=64, seed=0, rows=np.array([1, 4]))
    lengths = {int(batch_t) for batch_t in windows.sample().t.max(1)}
    assert max(lengths) == 6
    assert windows.sample().mask.any(0).sum() == 7
    with pytest.raises(DataError, match="no episodes"):
        WindowSampler(data, length=5, batch=4, seed=0, rows=np.array([], np.int64))


def test_arrays_are_reused(data):
    windows = WindowSampler(data, 5, 8, seed=1)
    assert all(a is b for a, b in zip(windows.sample(), windows.sample(), strict=True))


def test_windows_of_a_view_outlive_eviction(tmp_path):
    fill(tmp_path, range(20), kind="pictures", shard_bytes=10_000)
    windows = WindowSampler(Dataset.open(tmp_path), 5, 32, seed=0, cache_bytes=0)
    with StoreWriter(tmp_path, schema_of("pictures")) as writer:
        writer.evict(range(20))
    for _ in range(20):
        assert windows.sample().mask.any()


def test_damage_is_an_error_and_not_a_batch(tmp_path):
    fill(tmp_path, range(4), kind="pictures", shard_bytes=1 << 20)
    data = Dataset.open(tmp_path)
    path = tmp_path / "shards" / "000000.bin"
    content = bytearray(path.read_bytes())
    entry = data.entry(2)
    content[entry.end - entry.label - 5] ^= 1
    path.write_bytes(content)
    windows = WindowSampler(Dataset.open(tmp_path), 5, 64, seed=0)
    with pytest.raises(DataError, match="episode 2 is damaged"):
        [windows.sample() for _ in range(10)]


def test_windows_stay_on_their_episodes_when_the_dataset_is_refreshed(tmp_path):
    fill(tmp_path, range(6), shard_bytes=1 << 20)
    data = Dataset.open(tmp_path)
    windows, alone = (WindowSampler(d, 4, 16, seed=0) for d in (data, Dataset.open(tmp_path)))
    with StoreWriter(tmp_path, schema_of()) as writer:
        writer.evict([0, 2])
    data.refresh()
    for _ in range(5):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(windows.sample(), alone.sample(), strict=True))


def test_windows_of_each_kth_step_begin_where_experts_transitions_do(data):
    windows, wanted = WindowSampler(data, 1, batch=500, seed=3, every=4), every_kth(data, 4, 3)
    batch = windows.sample()
    seen = {(row[0].tobytes(), int(t)) for row, t in zip(batch.action, batch.t[:, 0], strict=True)}
    assert {action for action, _ in seen} == {action.tobytes() for action in wanted.action}
    assert len(seen) == len(wanted.action) < sum(LENGTHS)
