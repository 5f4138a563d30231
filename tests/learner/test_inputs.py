"""Losses see inputs of any type, what other losses kept, and what was prepared; policies say more than actions."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from roboloop.algos.learner.inputs import Arrays, Input, rows_of
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.learning import Adam, Decided, Learner, Step
from roboloop.core.types import Batch, EnvSpec
from tests.algos.test_shards import needs_two_cores
from tests.learner.toys import ToyConfig, same

PICTURE = np.dtype([("camera", np.uint8, (3, 4, 4)), ("vector", np.float32, (2,))])
SPEC = EnvSpec((), PICTURE, (-1.0, -2.0), (1.0, 2.0), 100)
ROWS = 8


class Watching(Learner):
    """Regresses actions from pixels in one loss, and from what that loss saw in another."""

    takes = frozenset({"pictures"})
    memory_size = 1

    def build(self):
        self.eye, self.actor = nn.Linear(48, 4), nn.Linear(4 + 2, 2)
        self.later = nn.Linear(4, 2)

    def steps(self):
        return (
            Step("loss", {"actor": Adam(0.1), "eye": Adam(0.1)}),
            Step("later_loss", {"later": Adam(0.1)}),
        )

    acting = ("eye", "actor")

    def kept(self):
        return {"features": (4,)}

    def scratch(self):
        return {"sign": Input((ROWS // self.cfg.shards,))}

    def prepare(self, batch):
        np.copyto(batch.sign.numpy(), np.where(batch.reward.numpy() > 0, 1.0, -1.0))

    def see(self, obs):
        return self.eye(obs.picture0.flatten(1) / 255.0)

    def loss(self, batch, noise):
        features = self.see(batch.obs)
        batch.features.copy_(features.detach())
        action = self.actor(torch.cat((features, batch.obs.vector), 1))
        return (action * batch.sign[:, None] - batch.action).square().mean(), {}

    def later_loss(self, batch, noise):
        return (self.later(batch.features) - batch.action).square().mean(), {}

    def decide(self, obs, memory, noise):
        action = self.actor(torch.cat((self.see(obs), obs.vector), 1))
        return Decided(action, memory + 1.0, action.sum(1), action.amax(1))


def batch_of(seed):
    rng = np.random.default_rng(seed)
    obs, next_obs = np.zeros(ROWS, PICTURE), np.zeros(ROWS, PICTURE)
    for seen in (obs, next_obs):
        seen["camera"] = rng.integers(0, 256, (ROWS, 3, 4, 4))
        seen["vector"] = rng.standard_normal((ROWS, 2))
    floats = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return Batch(obs, floats(ROWS, 2), floats(ROWS), next_obs, np.full(ROWS, 0.9, np.float32))


def learner_of(**settings):
    return ReplayLearner(Watching, ToyConfig(batch_size=ROWS, **settings), SPEC, 1, 0)


def updated(algo, first, last):
    for i in range(first, last):
        algo.update(batch_of(i))
    return algo


def test_arrays_of_any_type_lie_in_one_vector():
    arrays = Arrays(
        {"a": Input((3,), "uint8"), "b": Input((2, 2)), "c": Input((5,), "int32"), "d": Input((1,), "bool")}
    )
    views = arrays.views(torch.zeros(arrays.size))
    assert [(v.dtype, tuple(v.shape)) for v in views.values()] == [
        (torch.uint8, (3,)), (torch.float32, (2, 2)), (torch.int32, (5,)), (torch.bool, (1,)),
    ]  # fmt: skip
    views["a"].fill_(255)
    views["c"].fill_(-1)
    assert not views["b"].any()
    assert not views["d"].any()


def test_a_dot_in_a_name_makes_a_record():
    rows = rows_of({"obs.vector": torch.ones(1), "obs.mask": torch.zeros(1), "reward": torch.ones(2)})
    assert rows.obs.vector.item() == 1.0
    assert rows.obs.mask.item() == 0.0
    assert len(rows.reward) == 2


def test_pixels_are_seen_as_they_are_and_a_later_loss_sees_what_was_kept():
    algo = learner_of(processes=1, shards=1, replay_kernels=False)
    batch = batch_of(0)
    before = {name: view.clone() for name, view in algo.trainer.views.items()}
    said = algo.update(batch)
    pixels = torch.from_numpy(batch.obs["camera"].reshape(ROWS, -1) / np.float32(255))
    features = pixels @ before["eye.weight"].T + before["eye.bias"]
    wanted = features @ before["later.weight"].T + before["later.bias"] - torch.from_numpy(batch.action / [1.0, 2.0])
    assert said["later_loss"] == pytest.approx(wanted.square().mean().item(), rel=1e-5)


@needs_two_cores
def test_two_processes_and_replayed_kernels_give_the_bits_of_one():
    two = learner_of(processes=2)
    two.wait_until_ready()
    try:
        updated(two, 0, 12)
    finally:
        two.close()
    assert same(updated(learner_of(processes=1, replay_kernels=False), 0, 12), two)


def test_a_policy_says_memory_density_and_value():
    policy = updated(learner_of(processes=1), 0, 2).policy
    obs, rng = batch_of(5).obs, np.random.default_rng(0)
    memory = np.arange(ROWS, dtype=np.float32)[:, None]
    decisions = [policy.act(obs, memory, False, rng) for _ in range(12)]  # its kernels are recorded meanwhile
    for said in decisions:
        unit = said.action / np.float32([1.0, 2.0])
        np.testing.assert_array_equal(said.memory, memory + 1.0)
        assert (np.abs(unit) <= 1.0).all()
        assert (said.value >= unit.max(1) - 1e-6).all()
        np.testing.assert_array_equal(said.log_prob, decisions[0].log_prob)


def test_blocks_are_what_the_learners_convolutions_read():
    from roboloop.nets.conv import ConvSpec

    conv = ConvSpec((3, 4, 4), (2,), (2,), (2,), 0, "relu")

    class Blocks(Watching):
        def build(self):
            super().build()
            self.reads = (conv,)

        def see(self, obs):
            assert obs.picture0.shape[1:] == (conv.block_bytes,)
            return self.eye(obs.picture0.float())

    algo = ReplayLearner(Blocks, ToyConfig(batch_size=ROWS, processes=1), SPEC, 1, 0)
    batch = batch_of(0)
    algo.update(batch)
    wanted = np.zeros((ROWS, conv.block_bytes), np.uint8)
    conv.to_blocks(batch.obs["camera"], wanted)
    np.testing.assert_array_equal(algo.trainer.arrays["inputs/obs.picture0"].reshape(wanted.shape), wanted)
    assert dataclasses.asdict(conv) == dataclasses.asdict(Blocks(ToyConfig(), SPEC, 1).reads[0])
