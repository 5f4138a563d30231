"""MT10 in plain floats: the maths, whole episodes of several kinds, and resets, all equal to the original."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.types import Array
from roboloop.envs import EnvConfig, make, scripted_policy
from roboloop.envs.metaworld.lean import both, near, near_gaussian, quaternion
from roboloop.envs.metaworld.mt10 import LEAN
from roboloop.envs.metaworld.suite import MT10
from tests.envs.test_metaworld import expert_action, original, reset_original

reward_utils = pytest.importorskip("metaworld.utils.reward_utils", reason="roboloop[metaworld] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Constant")


def test_the_tails_are_those_of_the_original_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    for x, upper, margin in rng.uniform(0, 1, (500, 3)):
        theirs = reward_utils.tolerance(float(x), (upper / 2, upper), margin, "long_tail")
        assert near(float(x), float(upper / 2), float(upper), float(margin)) == theirs
        theirs = reward_utils.tolerance(float(x), (0, upper), margin, "gaussian")
        assert near_gaussian(float(x), float(upper), float(margin)) == theirs


def test_without_a_margin_there_is_no_tail() -> None:
    assert (near(0.5, 0, 1, 0), near(1.5, 0, 1, 0)) == (1.0, 0.0)
    assert (near_gaussian(0.5, 1, 0), near_gaussian(1.5, 1, 0)) == (1.0, 0.0)


def test_the_product_is_hamachers_and_stays_float32_where_one_factor_is() -> None:
    for a, b in np.random.default_rng(0).uniform(0, 1, (100, 2)).tolist():
        assert both(a, b) == reward_utils.hamacher_product(a, b)
        single = both(a, np.float32(b))
        assert single == reward_utils.hamacher_product(a, np.float32(b))
        assert isinstance(single, np.float32)
    assert both(0.0, 0.0) == 0.0


def test_quaternions_are_those_of_scipy() -> None:
    transform = pytest.importorskip("scipy.spatial.transform")
    for rotation in transform.Rotation.random(200, rng=np.random.default_rng(0)):
        ours, theirs = np.array(quaternion(rotation.as_matrix().ravel().tolist())), rotation.as_quat()
        assert np.allclose(ours * np.sign(ours @ theirs), theirs, atol=1e-12)


def test_every_task_of_mt10_has_its_lean_version() -> None:
    assert set(LEAN) == set(MT10)


class Abrupt:
    """Full speed in one direction, then another: the hand gets stuck, snaps free and overshoots."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.action, self.count = rng, np.zeros(4, np.float32), 0

    def __call__(self) -> Array:
        if self.count % 25 == 0:
            self.action = self.rng.choice([-1, 1], 4).astype(np.float32)
        self.count += 1
        return self.action


@pytest.mark.parametrize("kind", ["random", "abrupt", "expert"])
@pytest.mark.parametrize("task", MT10)
def test_episodes_of_every_kind_equal_the_original_bit_for_bit(task: str, kind: str) -> None:
    plain, ours, expert = original(task), make(EnvConfig(id=f"metaworld/{task}")), scripted_policy(task)
    seed = len(task) + len(kind)
    rng = np.random.default_rng(seed)
    abrupt = Abrupt(rng)
    obs = reset_original(plain, seed)
    ours.reset(seed)
    for step in range(180):
        if kind == "expert":
            action = expert_action(expert, obs, rng)
        else:
            action = abrupt() if kind == "abrupt" else rng.uniform(-1, 1, 4).astype(np.float32)
        obs, reward, _, _, info = plain.step(action)
        seen, our_reward, _, _, our_info = ours.step(action)
        data = ours.world._data  # type: ignore[attr-defined]
        assert np.array_equal(data.qpos, plain.data.qpos), f"the physics differs at step {step}"
        assert np.array_equal(data.qacc_warmstart, plain.data.qacc_warmstart), f"the warm start differs at step {step}"
        assert np.array_equal(seen, obs.astype(np.float32)), f"the observation differs at step {step}"
        assert (our_reward, our_info["success"]) == (float(reward), float(info["success"])), f"at step {step}"


@pytest.mark.parametrize("task", MT10)
def test_many_resets_and_what_follows_equal_the_original(task: str) -> None:
    plain, ours = original(task), make(EnvConfig(id=f"metaworld/{task}"))
    action = np.array([0.3, -0.2, 0.5, 1.0], np.float32)
    for seed in range(100, 106):
        assert np.array_equal(ours.reset(seed), reset_original(plain, seed).astype(np.float32))
        for _ in range(2):
            obs, reward = plain.step(action)[:2]
            seen, our_reward = ours.step(action)[:2]
            assert np.array_equal(seen, obs.astype(np.float32))
            assert our_reward == float(reward)


def test_an_action_that_is_no_number_is_refused_and_one_out_of_bounds_is_clipped() -> None:
    env, twin = (make(EnvConfig(id="metaworld/reach-v3")) for _ in range(2))
    env.reset(1)
    twin.reset(1)
    with pytest.raises(ValueError, match="finite numbers"):
        env.step(np.array([0, 0, np.nan, 0]))
    with pytest.raises(ValueError, match="finite numbers"):
        env.step(np.zeros(3))
    beyond, at = np.array([3.0, -3.0, 0.0, 9.0]), np.array([1.0, -1.0, 0.0, 1.0])
    assert env.step(beyond)[0].tobytes() == twin.step(at)[0].tobytes()
