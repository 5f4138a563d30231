"""Advantages and targets by hand, and against the definitions step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from roboloop.algos.learner.returns import Ends, Targets, ends_of, gae
from roboloop.algos.ppo import losses
from roboloop.core.types import Array, EpisodeEnd, Rollout


def vtrace(reward: Array, value: Array, ends: Ends, ratio: Array, *how: float) -> Targets:
    """Return V-trace's advantages and targets of arrays."""
    found = losses.vtrace(*map(torch.from_numpy, (reward, value, *ends, ratio)), *how)
    return Targets(found.advantage.numpy(), found.value.numpy())


def column(*values: float) -> Array:
    return np.array(values, np.float32).reshape(-1, 1)


def test_truncation_bootstraps_from_the_last_observation_and_termination_from_nothing() -> None:
    reward, value = column(1, 1, 1), column(0, 0, 0, 8)  # the row after an end belongs to another episode
    for end_value, wanted in ((4.0, [1 + 0.5 * 3, 1 + 0.5 * 4, 1 + 0.5 * 8]), (0.0, [1 + 0.5 * 1, 1.0, 1 + 0.5 * 8])):
        ends = Ends(column(0, 1, 0), column(0, end_value, 0))
        assert gae(reward, value, ends, gamma=0.5, lam=1.0).value[:, 0].tolist() == wanted


def test_a_window_that_ends_inside_an_episode_bootstraps_from_the_next_row() -> None:
    targets = gae(column(1), column(3, 10), Ends(column(0), column(0)), gamma=0.5, lam=0.9)
    assert targets.value[0, 0] == 6.0
    assert targets.advantage[0, 0] == 3.0


def test_lambda_zero_looks_one_step_ahead() -> None:
    targets = gae(column(1, 2), column(3, 5, 7), Ends(column(0, 0), column(0, 0)), gamma=1.0, lam=0.0)
    assert targets.advantage[:, 0].tolist() == [1 + 5 - 3, 2 + 7 - 5]


def test_vtrace_by_hand() -> None:
    """Last step, ratio 2 cut to 1: v_1 = 4 + (1 + 6 - 4); before it ratio 0.5: v_0 = 2 + 0.5 (1 + 4 - 2) + 0.5 * 3."""
    targets = vtrace(
        column(1, 1), column(2, 4, 6), Ends(column(0, 0), column(0, 0)), column(0.5, 2.0), 1.0, 1.0, 1.0, 1.0
    )
    assert targets.value[:, 0].tolist() == [2 + 0.5 * 3 + 0.5 * 3, 7.0]
    assert targets.advantage[:, 0].tolist() == [1 + 7 - 2, 1 + 6 - 4]


def random_case(seed: int) -> tuple[Array, Array, Ends, Array]:
    rng = np.random.default_rng(seed)
    shape = (9, 4)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    is_end = (terminated | truncated).astype(np.float32)
    end_value = np.where(truncated & ~terminated, rng.normal(size=shape), 0.0).astype(np.float32)
    reward, ratio = rng.normal(size=shape).astype(np.float32), np.exp(rng.normal(size=shape)).astype(np.float32)
    return reward, rng.normal(size=(10, 4)).astype(np.float32), Ends(is_end, end_value), ratio


def vtrace_by_definition(
    reward: Array, value: Array, ends: Ends, ratio: Array, gamma: float, lam: float, rho_max: float, c_max: float
) -> Array:
    """v_s = V_s + sum over t of gamma^(t-s) c_s ... c_(t-1) rho_t delta_t, one state at a time (eq. 1)."""
    steps, envs = reward.shape
    found = np.zeros((steps, envs))
    for env in range(envs):
        for s in range(steps):
            total, weight = float(value[s, env]), 1.0
            for t in range(s, steps):
                follows = ends.value[t, env] if ends.is_end[t, env] else value[t + 1, env]
                delta = reward[t, env] + gamma * follows - value[t, env]
                total += weight * min(ratio[t, env], rho_max) * delta
                if ends.is_end[t, env]:
                    break
                weight *= gamma * lam * min(ratio[t, env], c_max)
            found[s, env] = total
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("lam", "rho_max", "c_max"), [(1.0, 1.0, 1.0), (0.9, 2.0, 1.1)])
def test_vtrace_equals_its_definition(seed: int, lam: float, rho_max: float, c_max: float) -> None:
    case = random_case(seed)
    wanted = vtrace_by_definition(*case, 0.97, lam, rho_max, c_max)
    np.testing.assert_allclose(vtrace(*case, 0.97, lam, rho_max, c_max).value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_where_the_policies_are_equal_vtrace_is_gae(seed: int) -> None:
    reward, value, ends, ratio = random_case(seed)
    found = vtrace(reward, value, ends, np.ones_like(ratio), 0.97, 0.9, 1.0, 1.0)
    wanted = gae(reward, value, ends, 0.97, 0.9)
    np.testing.assert_allclose(found.advantage, wanted.advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-5, atol=1e-5)


def test_ends_are_placed_by_row_and_environment() -> None:
    terminated, truncated = np.zeros((2, 3, 2), bool)
    terminated[0, 0] = truncated[0, 0] = truncated[2, 1] = True
    zeros = np.zeros((3, 2), np.float32)
    episodes = [
        EpisodeEnd(env, 0, 1, 0.0, np.nan, t, np.zeros(1), last_value)
        for env, t, last_value in ((4, 0, 9.0), (5, 2, 7.0))
    ]
    rollout = Rollout(
        zeros, zeros, zeros, zeros, terminated, truncated, zeros, zeros, zeros, zeros, episodes, first_env=4
    )
    ends = ends_of(rollout)
    assert ends.is_end.tolist() == [[1, 0], [0, 0], [0, 1]]
    assert ends.value.tolist() == [[0, 0], [0, 0], [0, 7]], "where the world ended nothing follows"
