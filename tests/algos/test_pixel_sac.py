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

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import make_mtsac
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, EnvSpec
from roboloop.nets.flat import Views, clone
from tests.algos.learners import doubles, gradients, noise, saved_policy

PICTURE = (3, 20, 17)
PLAIN = EnvSpec(PICTURE, np.dtype(np.uint8), (-2.0, 0.0), (2.0, 1.0), 100)
RECORD = EnvSpec(
    (), np.dtype([("image", np.uint8, PICTURE), ("vector", np.float32, (3,))]), (-2.0, 0.0), (2.0, 1.0), 100
)
SMALL = SACConfig(
    hidden=(24, 16), batch_size=16, processes=1, conv_channels=(6, 5), conv_kernels=(4, 3), conv_strides=(2, 2),
    feature_dim=7,
)  # fmt: skip


def under(prefix: str, views: Views) -> Views:
    """Return the views whose names start with ``prefix.``, without it."""
    cut = len(prefix) + 1
    return {name[cut:]: view for name, view in views.items() if name.startswith(prefix + ".")}


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


# ---- the same networks by plain formulas ----


def layers(weights: Views, x: Tensor) -> Tensor:
    """Return an MLP's outputs; its layers stand at even places of a Sequential."""
    count = sum(name.endswith("weight") for name in weights)
    for i in range(count):
        x = functional.linear(x, weights[f"{2 * i}.weight"], weights[f"{2 * i}.bias"])
        x = functional.relu(x) if i < count - 1 else x
    return x


def trunk(weights: Views, x: Tensor) -> Tensor:
    x = functional.linear(x, weights["0.weight"], weights["0.bias"])
    return torch.tanh(functional.layer_norm(x, x.shape[1:], weights["1.weight"], weights["1.bias"]))


def convolve(weights: Views, pixels: Tensor) -> Tensor:
    """Return the features of pictures, from plain convolutions over pixels."""
    first = weights["weights.0"]  # [out, ky, kx, (channel, y, x)] of blocks of 2 x 2 pixels
    first = first.view(6, 2, 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(6, -1, 4, 4)
    x = functional.relu(functional.conv2d(pixels / 255 - 0.5, first, weights["biases.0"], 2))
    x = functional.relu(functional.conv2d(x, weights["weights.1"].permute(0, 3, 1, 2), weights["biases.1"], 2))
    return x.permute(0, 2, 3, 1).flatten(1)


def values(weights: Views, features: Tensor, vector: Tensor, action: Tensor) -> Tensor:
    x = torch.cat((trunk(under("trunk", weights), features), vector, action), 1)
    return torch.stack([layers(under(f"head.{e}", weights), x)[:, 0] for e in range(2)])


def act(weights: Views, features: Tensor, vector: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.cat((trunk(under("trunk", weights), features), vector), 1)
    mean, log_std = layers(under("head", weights), x).chunk(2, 1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) - torch.log(1 - action.square())).sum(1)


def losses_by_hand(algo: ReplayLearner, batch: Batch, pictures: list[list[Tensor]], vectors: list[Tensor]) -> Views:
    """Return the gradients of both losses, of pictures and vectors in this state and the next, with alpha 0.3."""
    leaves = doubles(algo)
    actor, critics, targets = (under(name, leaves) for name in ("actor", "critics", "target_critics"))
    seen, next_seen = (
        torch.cat([convolve(under(f"convs.{i}", leaves), p) for i, p in enumerate(each)], 1) for each in pictures
    )
    now, later = (noise(algo, name)[0].double() for name in ("now", "next"))
    with torch.no_grad():
        next_action, next_log_prob = act(actor, next_seen, vectors[1], later)
        next_q = values(targets, next_seen, vectors[1], next_action).amin(0)
        reward, discount = (torch.from_numpy(x).double() for x in (batch.reward, batch.discount))
        target = reward + discount * (next_q - 0.3 * next_log_prob)
    action = torch.from_numpy(algo._scale.to_unit(batch.action)).double()
    (0.5 * (values(critics, seen, vectors[0], action) - target).square().sum() / len(batch.reward)).backward()
    found = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
    for leaf in leaves.values():
        leaf.grad = None
    fresh, log_prob = act(actor, seen.detach(), vectors[0], now)
    (0.3 * log_prob - values(critics, seen.detach(), vectors[0], fresh).amin(0)).mean().backward()
    return found | {f"actor.{name}": leaf.grad for name, leaf in actor.items() if leaf.grad is not None}


def assert_gradients_by_hand(
    algo: ReplayLearner, batch: Batch, pictures: list[list[Tensor]], vectors: list[Tensor]
) -> None:
    found = gradients(algo, batch)
    wanted = losses_by_hand(algo, batch, pictures, vectors)
    assert found.keys() == wanted.keys()
    for name, grad in found.items():
        torch.testing.assert_close(
            grad.double(), wanted[name], atol=2e-6, rtol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize(("spec", "frames"), [(PLAIN, 1), (RECORD, 1), (RECORD, 2)])
def test_both_gradients_equal_the_formulas_and_only_the_critics_train_the_convolutions(
    spec: EnvSpec, frames: int
) -> None:
    sac = make_sac(dataclasses.replace(SMALL, alpha=0.3, shards=1), spec, frames, seed=0)
    batch = next(batches(spec, frames=frames))
    pictures, vectors = [], []
    for obs in (batch.obs, batch.next_obs):
        image, vector = (obs, np.zeros((16, 0))) if spec is PLAIN else (obs["image"], obs["vector"])
        pictures.append([torch.from_numpy(image.reshape(16, frames * 3, 20, 17)).double()])
        vectors.append(torch.from_numpy(vector.reshape(16, -1)).double())
    assert_gradients_by_hand(sac, batch, pictures, vectors)
    assert [*sac.trainer.steps[1].of] == ["actor"]


def test_the_actor_sees_as_the_critics_saw_before_the_convolutions_moved() -> None:
    sac, batch = make_sac(dataclasses.replace(SMALL, shards=1), PLAIN, 1, seed=0), next(batches(PLAIN))
    before = saved_policy(sac).learner
    blocks = torch.empty(16, before.reads[0].block_bytes, dtype=torch.uint8)
    before.reads[0].to_blocks(batch.obs, blocks.numpy())
    sac.update(batch)
    seen = before.convs[0](blocks).detach()
    torch.testing.assert_close(sac.trainer.pool.own_shard.losses["actor_loss"]._batch.seen, seen)
    assert not torch.allclose(sac.policy.learner.convs[0](blocks), seen, atol=1e-4)


# ---- the algorithm as a whole ----


@pytest.mark.parametrize("change", [{}, {"normalize_obs": True}, {"max_grad_norm": 0.01}, {"layer_norm": True}])
def test_state_and_load_continue_bit_for_bit(change: dict[str, Any]) -> None:
    cfg, source = dataclasses.replace(SMALL, **change), batches(RECORD, frames=2)
    first, second = make_sac(cfg, RECORD, 2, seed=3), make_sac(cfg, RECORD, 2, seed=4)
    for _ in range(5):
        first.update(next(source))
    second.load(copy.deepcopy(first.state()))
    for _ in range(5):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


def test_two_processes_give_the_bits_of_one() -> None:
    alone, together = (make_sac(dataclasses.replace(SMALL, processes=p), RECORD, 2, seed=0) for p in (1, 2))
    try:
        together.wait_until_ready()
        for batch in itertools.islice(batches(RECORD, frames=2), 8):
            assert alone.update(batch) == together.update(batch)
        assert_same_bits(alone.state(), together.state())
    finally:
        together.close()


def test_targets_have_a_trunk_of_their_own_but_no_convolutions() -> None:
    sac = make_sac(dataclasses.replace(SMALL, tau=0.25), PLAIN, 1, seed=0)
    views = sac.trainer.views
    before = clone(views)
    sac.update(next(batches(PLAIN)))
    targets = [name for name in views if name.startswith("target_critics")]
    assert "target_critics.trunk.0.weight" in targets
    assert not any("conv" in name for name in targets)
    assert not torch.equal(before["convs.0.weights.0"], views["convs.0.weights.0"])
    for name in targets:
        own = views[name.removeprefix("target_")]
        torch.testing.assert_close(views[name], 0.75 * before[name] + 0.25 * own)


def test_the_policy_is_rebuilt_from_its_state_and_from_its_blueprint() -> None:
    sac = make_sac(dataclasses.replace(SMALL, normalize_obs=True), RECORD, 2, seed=0)
    for batch in itertools.islice(batches(RECORD, frames=2), 3):
        sac.update(batch)
    travelled = build_policy(sac.policy.blueprint())
    weights = np.zeros(sac.policy.num_weights, np.float32)
    sac.policy.write_weights(weights)
    travelled.read_weights(weights, 3)
    saved = saved_policy(sac)
    obs = random_obs(np.random.default_rng(1), RECORD, (5, 2))
    memory, rng = np.zeros((5, 0), np.float32), np.random.default_rng(0)
    wanted = sac.policy.act(obs, memory, False, rng).action
    for policy in (saved, travelled, sac.policy.snapshot()):
        assert np.array_equal(policy.act(obs, memory, False, rng).action, wanted)
        one = policy.act(obs[:1], memory[:1], False, rng).action
        np.testing.assert_allclose(one, wanted[:1], rtol=1e-4, atol=1e-5)


def test_only_the_convolutions_of_pictures_ask_for_shifts() -> None:
    assert make_sac(SMALL, PLAIN, 3, seed=0).needs.shift_px == 4
    vector = EnvSpec((5,), np.dtype(np.float32), (-1.0,), (1.0,), 100)
    assert make_sac(SMALL, vector, 1, seed=0).needs.shift_px == 0


@pytest.mark.parametrize(
    ("cfg", "spec", "message"),
    [
        (SMALL, dataclasses.replace(PLAIN, obs_shape=(3, 5, 5)), "3x5x5 .* are too small for the convolutions"),
        (dataclasses.replace(SMALL, conv_strides=(2,)), PLAIN, "must be equally long"),
        (dataclasses.replace(SMALL, shift_px=-1), PLAIN, "shift_px must not be negative"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cfg: Any, spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sac(cfg, spec, 1, seed=0)


def test_several_tasks_are_not_learned_from_pictures() -> None:
    spec = dataclasses.replace(PLAIN, tasks=("a", "b"), one_task_each=True)
    with pytest.raises(ConfigError, match=r"MultiTaskSAC takes vectors, not pictures; .*: --algo sac"):
        make_mtsac(MTSACConfig(batch_size=16), spec, 1, seed=0)


def test_a_network_of_another_kind_sees_through_the_same_convolutions() -> None:
    sac = make_sac(dataclasses.replace(SMALL, net="residual"), RECORD, 1, seed=0)
    before = clone(sac.trainer.views)
    sac.update(next(batches(RECORD)))
    assert all(not torch.equal(view, before[name]) for name, view in sac.trainer.views.items() if "weights" in name)


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
    sac, rng = make_sac(cfg, spec, 1, seed=0), np.random.default_rng(0)
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
