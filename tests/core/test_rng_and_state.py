import numpy as np
import pytest

from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.state import counts_from, equal, join, split


def test_streams_are_named_not_counted():
    assert stream(1, "a", 2).random() == stream(1, "a", 2).random()
    assert stream(1, "a", 2).random() != stream(1, "b", 2).random()
    assert derive(1, "a", 2) != derive(2, "a", 2)


def test_a_restored_generator_goes_on_where_it_was():
    rng = stream(0, "x")
    rng.random(3)
    state = get_rng_state(rng)
    expected = rng.standard_normal(5)
    other = stream(9, "y")
    set_rng_state(other, state)
    assert (other.standard_normal(5) == expected).all()


def test_state_splits_into_arrays_and_json_and_joins_again():
    state = {"a": np.arange(3), "b": [{"c": np.float32(2)}, 1.5, None], "d": {"e": "text"}}
    tensors, tree = split(state)
    assert list(tensors) == ["a"]
    assert equal(join(tensors, tree), {"a": np.arange(3), "b": [{"c": 2.0}, 1.5, None], "d": {"e": "text"}})


def test_equality_is_bit_for_bit():
    assert equal({"x": np.array([np.nan])}, {"x": np.array([np.nan])})
    assert not equal({"x": np.array([0.0])}, {"x": np.array([-0.0])})
    assert not equal({"x": np.zeros(1, np.float32)}, {"x": np.zeros(1)})


@pytest.mark.parametrize("odd", [{}, [], "x", None])
def test_counters_that_are_no_numbers_are_refused(odd):
    assert counts_from({"steps": 3}) == {"steps": 3}
    with pytest.raises((TypeError, ValueError)):
        counts_from({"steps": odd})
