"""What comes on top of a policy where data are recorded."""

import numpy as np
import pytest

from roboloop.algos.behaviour import Behaviour
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Decision, EnvSpec
from tests.sample.kit import LinearPolicy

SPEC = EnvSpec((3,), np.dtype(np.float32), (-1.0, 0.0), (1.0, 10.0), 100)
MASK = np.dtype([("vector", np.float32, (3,)), ("action_mask", bool, (4,))])
CHOICE = EnvSpec((3,), np.dtype(np.float32), (0.0,), (3.0,), 100, action_choices=(4,))
MASKED = EnvSpec((), MASK, (0.0,), (3.0,), 100, action_choices=(4,))
ROWS = 4000


class Still:
    """Always the same action, which it holds to be certain."""

    memory_size, version, num_weights = 0, 5, 0

    def __init__(self, *action):
        self._action = np.array(action, np.float32)

    def act(self, obs, memory, explore, rng):
        action = np.repeat(self._action[None], len(obs), 0)
        return Decision(action, memory, np.zeros(len(obs), np.float32), np.ones(len(obs), np.float32))


def acts(behaviour, obs=None, explore=True, seed=0):
    obs = np.zeros((ROWS, 3), np.float32) if obs is None else obs
    return behaviour.act(obs, np.zeros((len(obs), 0), np.float32), explore, np.random.default_rng(seed))


def test_the_likeliest_action_is_taken_unless_it_is_to_explore():
    policy = LinearPolicy(3, 2)
    obs, memory, rng = np.ones((5, 3), np.float32), np.zeros((5, 2), np.float32), np.random.default_rng(0)
    wanted = policy.act(obs, memory, False, rng)
    for got, expected in zip(Behaviour(policy, SPEC).act(obs, memory, True, rng), wanted, strict=True):
        assert np.array_equal(got, expected)
    wanted = policy.act(obs, memory, True, np.random.default_rng(1))
    got = Behaviour(policy, SPEC, explore=True).act(obs, memory, True, np.random.default_rng(1))
    assert np.array_equal(got.action, wanted.action)


def test_noise_is_measured_in_half_the_range_of_each_action_and_stays_in_bounds():
    decision = acts(Behaviour(Still(0.0, 5.0), SPEC, noise=0.1))
    assert decision.action.dtype == np.float32
    assert decision.action.mean(0) == pytest.approx([0.0, 5.0], abs=0.05)
    assert decision.action.std(0) == pytest.approx([0.1, 0.5], rel=0.05)
    at_edge = acts(Behaviour(Still(7.0, 0.0), SPEC, noise=0.5)).action  # the first is taken for 1
    assert (at_edge >= SPEC.action_low).all()
    assert (at_edge <= SPEC.action_high).all()
    assert ((at_edge == (1.0, 0.0)).mean(0) > 0.45).all()
    assert ((at_edge == (1.0, 0.0)).mean(0) < 0.55).all()


def test_the_likelihood_of_an_action_with_noise_is_not_claimed_to_be_known():
    assert acts(Behaviour(Still(0.0, 5.0), SPEC)).log_prob is not None
    noisy = acts(Behaviour(Still(0.0, 5.0), SPEC, noise=0.1))
    assert noisy.log_prob is None
    assert (noisy.value == 1).all()


def test_asking_for_the_value_alone_draws_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    obs = np.zeros((2, 3), np.float32)
    decision = Behaviour(Still(0.0, 5.0), SPEC, explore=True, noise=0.3).act(obs, np.zeros((2, 0)), False, rng)
    assert rng.bit_generator.state == before
    assert (decision.action == (0.0, 5.0)).all()


def test_noise_of_a_choice_is_the_probability_of_an_even_draw():
    chosen = acts(Behaviour(Still(2.0), CHOICE, noise=0.4)).action[:, 0]
    counts = np.bincount(chosen.astype(int), minlength=4) / ROWS
    assert counts == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.03)


def test_a_draw_never_takes_what_is_masked():
    obs = np.zeros(ROWS, MASK)
    obs["action_mask"] = (True, False, True, False)
    chosen = acts(Behaviour(Still(2.0), MASKED, noise=1.0), obs).action[:, 0]
    assert set(chosen.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(("spec", "noise"), [(SPEC, -0.1), (SPEC, np.inf), (SPEC, np.nan), (CHOICE, 1.5)])
def test_impossible_noise_is_refused(spec, noise):
    with pytest.raises(ConfigError, match="noise"):
        Behaviour(Still(0.0, 5.0), spec, noise=noise)


def test_another_process_builds_the_same_behaviour():
    policy = LinearPolicy(3, 2)
    policy.improve()
    here = Behaviour(policy, SPEC, explore=True, noise=0.2)
    there = build_policy(here.blueprint())
    weights = np.zeros(here.num_weights, np.float32)
    here.write_weights(weights)
    there.read_weights(weights, here.version)
    obs, memory = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    a, b = (p.act(obs, memory, True, np.random.default_rng(2)) for p in (here, there))
    assert np.array_equal(a.action, b.action)
    assert there.version == 1
