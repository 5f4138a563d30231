"""SAC and PPO from several pictures of different sizes: gradients, bits, shifts, and which picture shows what."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from roboloop.algos.policy import UniformPolicy
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import PPO
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, BatchSpec, EnvSpec
from roboloop.data.replay import Replay
from roboloop.data.shifts import Shifts, shift
from tests.algos.learners import saved_policy
from tests.algos.test_pixel_sac import RECORD, SMALL, assert_gradients_by_hand, assert_same_bits
from tests.algos.test_pixel_sac import batches as batches_of_one

FRONT, WRIST = (1, 20, 17), (3, 14, 22)
CAMERAS = EnvSpec(
    (), np.dtype([("vector", np.float32, (3,)), ("front", np.uint8, FRONT), ("wrist", np.uint8, WRIST)]),
    (-2.0, 0.0), (2.0, 1.0), 100,
)  # fmt: skip


def random_obs(rng: np.random.Generator, lead: tuple[int, ...]) -> Array:
    obs = np.zeros(lead, CAMERAS.obs_dtype)
    obs["vector"] = rng.normal(2.0, 3.0, (*lead, 3))
    for name, shape in (("front", FRONT), ("wrist", WRIST)):
        obs[name] = rng.integers(0, 256, (*lead, *shape), dtype=np.uint8)
    return obs


def batches(lead: tuple[int, ...] = (16,)) -> Iterator[Batch]:
    """Yield random batches for ever."""
    rng, size = np.random.default_rng(0), lead[0]
    while True:
        action = rng.uniform(CAMERAS.action_low, CAMERAS.action_high, (size, 2)).astype(np.float32)
        reward = rng.normal(size=size).astype(np.float32)
        discount = (0.99 * (rng.random(size) > 0.1)).astype(np.float32)
        yield Batch(random_obs(rng, lead), action, reward, random_obs(rng, lead), discount)


@pytest.mark.parametrize("frames", [1, 2])
def test_gradients_of_each_pictures_convolutions_equal_the_formulas(frames: int) -> None:
    sac = make_sac(dataclasses.replace(SMALL, alpha=0.3, shards=1), CAMERAS, frames, seed=0)
    batch = next(batches((16, frames) if frames > 1 else (16,)))
    pictures, vectors = [], []
    for obs in (batch.obs, batch.next_obs):
        shapes = (("front", FRONT), ("wrist", WRIST))
        shown = [torch.from_numpy(obs[f].reshape(16, frames * s[0], *s[1:])).double() for f, s in shapes]
        pictures.append(shown)
        vectors.append(torch.from_numpy(obs["vector"].reshape(16, -1)).double())
    assert_gradients_by_hand(sac, batch, pictures, vectors)


def test_state_and_load_continue_bit_for_bit_and_two_processes_give_the_bits_of_one() -> None:
    cfg, source = dataclasses.replace(SMALL, normalize_obs=True), batches((16, 2))
    first, second = (
        make_sac(cfg, CAMERAS, 2, seed=3),
        make_sac(dataclasses.replace(cfg, processes=2), CAMERAS, 2, seed=4),
    )
    try:
        second.wait_until_ready()
        for _ in range(4):
            first.update(next(source))
        second.load(copy.deepcopy(first.state()))
        for _ in range(4):
            batch = next(source)
            assert first.update(batch) == second.update(batch)
        assert_same_bits(first.state(), second.state())
    finally:
        second.close()


def test_the_policy_is_rebuilt_from_its_state_and_from_its_blueprint() -> None:
    sac = make_sac(SMALL, CAMERAS, 1, seed=0)
    for batch in itertools.islice(batches(), 3):
        sac.update(batch)
    travelled, weights = build_policy(sac.policy.blueprint()), np.zeros(sac.policy.num_weights, np.float32)
    sac.policy.write_weights(weights)
    travelled.read_weights(weights, 3)
    saved = saved_policy(sac)
    obs, memory, rng = random_obs(np.random.default_rng(1), (5,)), np.zeros((5, 0), np.float32), None
    wanted = sac.policy.act(obs, memory, False, rng).action  # type: ignore[arg-type]
    for policy in (saved, travelled, sac.policy.snapshot()):
        assert np.array_equal(policy.act(obs, memory, False, rng).action, wanted)  # type: ignore[arg-type]


def test_a_picture_may_have_any_name_and_changes_no_bit() -> None:
    dtype = np.dtype([("camera 7", *RECORD.obs_dtype["image"].subdtype), ("vector", np.float32, (3,))])
    a, b = (
        make_sac(SMALL, RECORD, 1, seed=0),
        make_sac(SMALL, dataclasses.replace(RECORD, obs_dtype=dtype), 1, seed=0),
    )
    for batch in itertools.islice(batches_of_one(RECORD), 3):
        renamed = batch._replace(obs=batch.obs.astype(dtype), next_obs=batch.next_obs.astype(dtype))
        renamed.obs["camera 7"], renamed.next_obs["camera 7"] = batch.obs["image"], batch.next_obs["image"]
        renamed.obs["vector"], renamed.next_obs["vector"] = batch.obs["vector"], batch.next_obs["vector"]
        assert a.update(batch) == b.update(renamed)
    assert_same_bits(a.state(), b.state())


def test_each_picture_is_shifted_by_its_own_draw() -> None:
    obs = random_obs(np.random.default_rng(0), (32,))
    shifts, out = Shifts(np.empty_like(obs), CAMERAS, 3), np.empty_like(obs)
    shifts.inlet(out)[:] = obs
    shifts.finish(out, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    for name in ("front", "wrist"):
        wanted = np.empty_like(obs[name])
        shift(obs[name], rng.integers(-3, 4, (32, 2)), wanted)
        assert np.array_equal(out[name], wanted)
        assert not np.array_equal(out[name], obs[name])
    assert np.array_equal(out["vector"], obs["vector"])


def test_a_replay_shifts_all_pictures_of_its_batches() -> None:
    replay = Replay(64, CAMERAS, 1, BatchSpec(8, 1, 0.99, 1, shift_px=2), seed=0)
    assert set(replay._shifts._pictures) == {"front", "wrist"}


def test_a_picture_that_is_too_small_for_the_shifts_is_named() -> None:
    with pytest.raises(ConfigError, match="shift_px 14 leaves nothing of pictures of 14x22"):
        make_sac(dataclasses.replace(SMALL, shift_px=14), CAMERAS, 1, seed=0)


def test_ppo_has_an_encoder_for_each_picture() -> None:
    cfg = PPOConfig(conv_channels=(4, 4), conv_kernels=(4, 3), conv_strides=(2, 2), conv_features=8)
    net = PPO(cfg, CAMERAS, 1).net
    assert [each.spec.picture for each in net.actor.pictures] == [FRONT, WRIST]
    assert net.actor.size == 8 + 8 + 64


def pointers(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Return observations in which each camera shows one of two places by a bright bar, and the places."""
    obs, place = np.zeros(rows, CAMERAS.obs_dtype), rng.integers(2, 13, (rows, 2))
    for row, (x, y) in enumerate(place):
        obs["front"][row, :, :, x - 1 : x + 2] = 200
        obs["wrist"][row, :, y - 1 : y + 2] = 200
    return obs, ((place - 7) / 6).astype(np.float32)


def test_it_learns_what_only_both_pictures_together_show() -> None:
    spec = dataclasses.replace(CAMERAS, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    cfg: SACConfig = dataclasses.replace(
        SMALL, hidden=(64,), batch_size=64, actor_lr=2e-3, critic_lr=2e-3, alpha=0.01, feature_dim=16
    )
    sac, rng = make_sac(cfg, spec, 1, seed=0), np.random.default_rng(0)
    done, uniform, memory = np.zeros(64, np.float32), UniformPolicy(spec), np.zeros((64, 0), np.float32)
    for _ in range(300):
        obs, place = pointers(rng, 64)
        behaviour = uniform if rng.random() < 0.3 else sac.policy
        action = behaviour.act(obs, memory, True, rng).action
        sac.update(Batch(obs, action, -np.square(action - place).sum(1), obs, done))
    obs, place = pointers(rng, 64)
    error = np.abs(sac.policy.act(obs, memory, False, rng).action - place).mean(0)
    assert (error < 0.3).all()  # always pointing to the middle would be off by half in both
