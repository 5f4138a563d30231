import numpy as np

from roboloop.nets.normalize import FollowedNorm, Identity, RunningNorm, normalizer_of

ROWS = np.random.default_rng(0).normal(3.0, 2.0, (600, 4)).astype(np.float32)


def test_batches_give_the_statistics_of_all_rows():
    norm = RunningNorm(4)
    for part in np.split(ROWS, [10, 11, 300]):
        norm.update(part)
    expected = (ROWS - ROWS.mean(0)) / ROWS.std(0)
    np.testing.assert_allclose(norm(ROWS), expected, atol=1e-4)


def test_what_never_changes_becomes_zero_and_outliers_are_cut():
    norm = RunningNorm(2)
    norm.update(np.array([[5.0, 0.0], [5.0, 1.0]], np.float32))
    assert norm(np.array([[5.0, 1e9]], np.float32)).tolist() == [[0.0, 10.0]]


def test_a_restored_normaliser_is_the_same_one():
    norm = RunningNorm(4)
    norm.update(ROWS)
    other = normalizer_of(norm.state())
    assert (other(ROWS) == norm(ROWS)).all()
    assert isinstance(normalizer_of(Identity().state()), Identity)


def test_the_input_is_left_alone():
    norm = RunningNorm(4)
    before = ROWS.copy()
    norm.update(ROWS)
    norm(ROWS)
    assert (before == ROWS).all()
    assert norm(ROWS).dtype == np.float32


def test_one_that_follows_scales_by_the_numbers_of_the_other():
    norm, follower = RunningNorm(4), FollowedNorm(4)
    norm.update(ROWS)
    follower.numbers[:] = norm.numbers
    assert (follower(ROWS) == norm(ROWS)).all()
    assert (normalizer_of(follower.state())(ROWS) == norm(ROWS)).all()


def test_a_variance_floor_keeps_what_hardly_changes_small():
    norm = RunningNorm(1, variance_floor=1.0)
    norm.update(np.full((10, 1), 7.0, np.float32))
    assert norm(np.array([[8.0]], np.float32)).tolist() == [[1.0]]
