"""SAC from pictures: gradients against autograd, exact resume, equality over processes, learnability."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.policy import ActorPolicy, UniformPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, EnvSpec
from roboloop.nets.flat import Views, under
from roboloop.nets.layers import as_in_out

PICTURE = (3, 20, 17)
PLAIN = EnvSpec(PICTURE, np.dtype(np.uint8), (-2.0, 0.0), (2.0, 1.0), 100)
RECORD = EnvSpec(
    (), np.dtype([("image", np.uint8, PICTURE), ("vector", np.float32, (3,))]), (-2.0, 0.0), (2.0, 1.0), 100
)
SMALL = SACConfig(
    hidden=(24, 16), batch_size=16, processes=1, conv_channels=(6, 5), conv_kernels=(4, 3), conv_strides=(2, 2),
    feature_dim=7,
)  # fmt: skip


def random_obs(rng: np.random.Generator, spec: EnvSpec, lead: tuple[int, ...]) -> Array:
    obs = np.zeros((*lead, *spec.obs_shape), spec.obs_dtype)
    pixels = rng.integers(0, 256, (*lead, *PICTURE), dtype=np.uint8)
    if spec.obs_dtype.names is None:
        obs[:] = pixels
    else:
        obs["image"], obs["vector"] = pixels, rng.normal(2.0, 3.0, (*lead, 3))
    return obs


def batches(spec: EnvSpec, size: int = 16, frames: int = 1) -> Iterator[Batch]:
    """Yield random batches for ever."""
    rng = np.random.default_rng(0)
    lead = (size, frames) if frames > 1 else (size,)
    while True:
        obs, next_obs = random_obs(rng, spec, lead), random_obs(rng, spec, lead)
        action = rng.uniform(spec.action_low, spec.action_high, (size, 2)).astype(np.float32)
        reward = rng.normal(size=size).astype(np.float32)
        yield Batch(obs, action, reward, next_obs, (0.99 * (rng.random(size) > 0.1)).astype(np.float32))


def assert_same_bits(a: Any, b: Any, path: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_same_bits(value, b[key], f"{path}.{key}")
    else:
        assert np.array_equal(a, b), f"{path} differs"


# ---- the same networks by autograd ----


def linear(weights: Views, x: Tensor) -> Tensor:
    return x @ as_in_out(weights["weight"], weights["bias"]) + weights["bias"]


def mlp(weights: Views, x: Tensor) -> Tensor:
    count = sum(name.endswith("weight") for name in weights)
    for i in range(count):
        x = linear(under(f"linear{i}", weights), x)
        x = functional.relu(x) if i < count - 1 else x
    return x


def trunk(weights: Views, x: Tensor) -> Tensor:
    norm = under("norm0", weights)
    x = linear(under("linear0", weights), x)
    return torch.tanh(functional.layer_norm(x, x.shape[1:], norm["gain"], norm["bias"]))


def convolve(weights: Views, pixels: Tensor) -> Tensor:
    """Return the features of pictures, from plain convolutions over pixels."""
    first = weights["conv0.weight"]  # [out, ky, kx, (channel, y, x)] of blocks of 2 x 2 pixels
    first = first.view(6, 2, 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(6, -1, 4, 4)
    x = functional.relu(functional.conv2d(pixels / 255 - 0.5, first, weights["conv0.bias"], 2))
    second = weights["conv1.weight"].permute(0, 3, 1, 2)
    x = functional.relu(functional.conv2d(x, second, weights["conv1.bias"], 2))
    return x.permute(0, 2, 3, 1).flatten(1)


def values(weights: Views, features: Tensor, vector: Tensor, action: Tensor) -> Tensor:
    x = torch.cat((trunk(under("trunk", weights), features), vector, action), 1)
    return torch.stack([mlp(under(str(e), weights), x)[:, 0] for e in range(2)])


def act(weights: Views, features: Tensor, vector: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.cat((trunk(under("trunk", weights), features), vector), 1)
    mean, log_std = mlp(under("head", weights), x).chunk(2, 1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) - torch.log(1 - action.square())).sum(1)


@pytest.mark.parametrize(("spec", "frames"), [(PLAIN, 1), (RECORD, 1), (RECORD, 2)])
def test_both_gradients_equal_autograd_and_only_the_critics_train_the_convolutions(spec: EnvSpec, frames: int) -> None:
    sac = MultiTaskSAC(dataclasses.replace(SMALL, alpha=0.3, shards=1), spec, frames, seed=0)
    batch = next(batches(spec, frames=frames))
    sac._load_batch(batch)
    actor, critics, targets = (
        {name: view.double().clone().requires_grad_() for name, view in sac._layouts[net].views(sac._mem[net]).items()}
        for net in ("actor", "critics", "targets")
    )
    pictures, vectors = [], []
    for obs in (batch.obs, batch.next_obs):
        image, vector = (obs, np.zeros((16, 0))) if spec is PLAIN else (obs["image"], obs["vector"])
        pictures.append(torch.from_numpy(image.reshape(16, frames * 3, 20, 17)).double())
        vectors.append(torch.from_numpy(vector.reshape(16, -1)).double())
    noise = sac._mem["noise_pair"][0].double()
    features, next_features = (convolve(under("conv", critics), p) for p in pictures)
    with torch.no_grad():
        next_action, next_log_prob = act(actor, next_features, vectors[1], noise[1])
        next_q = values(targets, next_features, vectors[1], next_action).amin(0)
        reward, discount = (torch.from_numpy(x).double() for x in (batch.reward, batch.discount))
        target = reward + discount * (next_q - 0.3 * next_log_prob)
    action = torch.from_numpy(sac._scale.to_unit(batch.action)).double()
    (0.5 * (values(critics, features, vectors[0], action) - target).square().sum() / 16).backward()
    sac._pool.run(("critic_gradients",))
    for name, view in sac._layouts["critics"].views(sac._mem["critics_grad"][0]).items():
        torch.testing.assert_close(
            view.double(), critics[name].grad, atol=2e-6, rtol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
    for leaf in critics.values():
        leaf.grad = None
    fresh, log_prob = act(actor, features.detach(), vectors[0], noise[0])
    (0.3 * log_prob - values(critics, features.detach(), vectors[0], fresh).amin(0)).mean().backward()
    sac._pool.run(("actor_gradients",))
    for name, view in sac._layouts["actor"].views(sac._mem["actor_grad"][0]).items():
        torch.testing.assert_close(
            view.double(), actor[name].grad, atol=2e-6, rtol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


# ---- the algorithm as a whole ----


@pytest.mark.parametrize("change", [{}, {"normalize_obs": True}, {"max_grad_norm": 0.01}, {"layer_norm": True}])
def test_state_and_load_continue_bit_for_bit(change: dict[str, Any]) -> None:
    cfg, source = dataclasses.replace(SMALL, **change), batches(RECORD, frames=2)
    first, second = MultiTaskSAC(cfg, RECORD, 2, seed=3), MultiTaskSAC(cfg, RECORD, 2, seed=4)
    for _ in range(5):
        first.update(next(source))
    second.load(copy.deepcopy(first.state()))
    for _ in range(5):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


def test_two_processes_give_the_bits_of_one() -> None:
    alone, together = (MultiTaskSAC(dataclasses.replace(SMALL, processes=p), RECORD, 2, seed=0) for p in (1, 2))
    try:
        together.wait_until_ready()
        for batch in itertools.islice(batches(RECORD, frames=2), 8):
            assert alone.update(batch) == together.update(batch)
        assert_same_bits(alone.state(), together.state())
    finally:
        together.close()


def test_targets_have_a_trunk_of_their_own_but_no_convolutions() -> None:
    sac = MultiTaskSAC(dataclasses.replace(SMALL, tau=0.25), PLAIN, 1, seed=0)
    before = sac.state()
    sac.update(next(batches(PLAIN)))
    after = sac.state()
    assert not any(name.startswith("conv.") for name in after["targets"])
    assert not torch.equal(before["critics"]["conv.conv0.weight"], after["critics"]["conv.conv0.weight"])
    assert "trunk.linear0.weight" in after["targets"]
    for name, target in after["targets"].items():
        torch.testing.assert_close(target, 0.75 * before["targets"][name] + 0.25 * after["critics"][name])


def test_the_policy_is_rebuilt_from_its_state_and_from_its_blueprint() -> None:
    sac = MultiTaskSAC(dataclasses.replace(SMALL, normalize_obs=True), RECORD, 2, seed=0)
    for batch in itertools.islice(batches(RECORD, frames=2), 3):
        sac.update(batch)
    travelled = build_policy(sac.policy.blueprint())
    weights = np.zeros(sac.policy.num_weights, np.float32)
    sac.policy.write_weights(weights)
    travelled.read_weights(weights, 3)
    saved = ActorPolicy.from_state(sac.state()["policy"], RECORD)
    obs = random_obs(np.random.default_rng(1), RECORD, (5, 2))
    memory, rng = np.zeros((5, 0), np.float32), np.random.default_rng(0)
    wanted = sac.policy.act(obs, memory, False, rng).action
    for policy in (saved, travelled, sac.policy.snapshot()):
        assert np.array_equal(policy.act(obs, memory, False, rng).action, wanted)
        one = policy.act(obs[:1], memory[:1], False, rng).action
        np.testing.assert_allclose(one, wanted[:1], rtol=1e-4, atol=1e-5)


def test_only_the_convolutions_of_pictures_ask_for_shifts() -> None:
    assert MultiTaskSAC(SMALL, PLAIN, 3, seed=0).needs.shift_px == 4
    vector = EnvSpec((5,), np.dtype(np.float32), (-1.0,), (1.0,), 100)
    assert MultiTaskSAC(SMALL, vector, 1, seed=0).needs.shift_px == 0


@pytest.mark.parametrize(
    ("cfg", "spec", "message"),
    [
        (SMALL, dataclasses.replace(PLAIN, obs_shape=(3, 5, 5)), "3x5x5 .* are too small for the convolutions"),
        (dataclasses.replace(SMALL, conv_strides=(2,)), PLAIN, "must be equally long"),
        (dataclasses.replace(SMALL, shift_px=-1), PLAIN, "shift_px must not be negative"),
        (MTSACConfig(batch_size=16), dataclasses.replace(PLAIN, tasks=("a", "b"), one_task_each=True),
         "mtsac learns from vectors, not from pictures"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(cfg: Any, spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiTaskSAC(cfg, spec, 1, seed=0)


def pointer(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Return pictures of a bright bar, and where it stands in [-1, 1]."""
    column = rng.integers(2, 15, rows)
    pictures = rng.integers(0, 60, (rows, *PICTURE), dtype=np.uint8)
    for row, c in enumerate(column):
        pictures[row, :, 4:16, c - 1 : c + 2] += 150
    return pictures, ((column - 8) / 6).astype(np.float32)


def test_it_learns_to_point_at_what_only_the_picture_shows() -> None:
    spec = EnvSpec(PICTURE, np.dtype(np.uint8), (-1.0,), (1.0,), 1)
    cfg = dataclasses.replace(SMALL, hidden=(64,), batch_size=64, actor_lr=2e-3, critic_lr=2e-3, alpha=0.01)
    sac, rng = MultiTaskSAC(cfg, spec, 1, seed=0), np.random.default_rng(0)
    done, uniform = np.zeros(64, np.float32), UniformPolicy(spec)
    memory = np.zeros((64, 0), np.float32)
    for _ in range(400):
        pictures, place = pointer(rng, 64)
        behaviour = uniform if rng.random() < 0.3 else sac.policy
        action = behaviour.act(pictures, memory, True, rng).action
        sac.update(Batch(pictures, action, -np.square(action[:, 0] - place), pictures, done))
    pictures, place = pointer(rng, 64)
    error = np.abs(sac.policy.act(pictures, memory, False, rng).action[:, 0] - place)
    assert error.mean() < 0.12  # always pointing to the middle would be off by half
