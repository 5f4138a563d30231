"""Learners update, act, save and resume on a device that is not the CPU, with the CPU's numbers."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from outside.crossq import CrossQ, CrossQConfig
from outside.td3 import TD3, TD3Config
from outside.tqc import TQC, TQCConfig

from roboloop.algos.guided.example_sac import ExampleSAC, ExampleSACConfig
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.pick import pick as picking
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.pixels import PixelSAC
from roboloop.algos.sac.sac import SAC
from tests.algos import test_multitask_sac as multitask
from tests.algos import test_pick as pick
from tests.algos import test_pixel_sac as pixel_sac
from tests.algos.toys import Anything, Player
from tests.learner.standin import DEVICE, standin
from tests.learner.toys import SPEC, Toy, ToyConfig, batch_of, numbers

# a bias before batch normalisation has no gradient but rounding, which Adam would make a step of the whole step size
SMALL = {"hidden": (16, 16), "batch_size": 8, "processes": 1, "shards": 1}
LEARNERS = {
    "toy": (Toy, ToyConfig(max_grad_norm=0.01, shards=1)),
    "sac": (SAC, SACConfig(net="residual", **SMALL)),
    "td3": (TD3, dataclasses.replace(TD3Config(), **SMALL)),
    "tqc": (TQC, dataclasses.replace(TQCConfig(), **SMALL)),
    "crossq": (CrossQ, dataclasses.replace(CrossQConfig(), critic_hidden=(16, 16), lr=1e-6, **SMALL)),
}


MULTI = dataclasses.replace(multitask.SMALL, shards=1)
PIXELS = dataclasses.replace(pixel_sac.SMALL, shards=1)
PICKS = dataclasses.replace(pick.SMALL, sac=dataclasses.replace(pick.SAC_SMALL, shards=1))
SEEN = pick.SEEN
SAC_FAMILY = {
    "heads": (MultiTaskSAC, MULTI, multitask.SPEC, multitask.batches()),
    "soft": (MultiTaskSAC, dataclasses.replace(MULTI, net="soft"), multitask.SPEC, multitask.batches()),
    "examples": (
        ExampleSAC, ExampleSACConfig(**vars(MULTI), num_examples=4, penalty=10.0), multitask.SPEC, multitask.batches()
    ),
    "pixels": (PixelSAC, PIXELS, pixel_sac.RECORD, pixel_sac.batches(pixel_sac.RECORD)),
    "mvp-pixels": (*picking.learner_of(PICKS, SEEN), SEEN, pick.batches(spec=SEEN)),
    "autoregressive-pixels": (
        *picking.learner_of(dataclasses.replace(PICKS, pick="autoregressive"), SEEN), SEEN, pick.batches(spec=SEEN)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNERS)
def test_on_another_device_a_learner_has_the_numbers_of_the_cpu_and_waits_once_an_update(name):
    assert_same_on_a_device(*LEARNERS[name], SPEC, [batch_of(i) for i in range(7)])


@pytest.mark.parametrize("name", SAC_FAMILY)
def test_so_has_each_of_sacs_family(name):
    make, cfg, spec, source = SAC_FAMILY[name]
    assert_same_on_a_device(make, cfg, spec, [*itertools.islice(source, 7)])


def assert_same_on_a_device(make, cfg, spec, batches):
    """Compare six updates, with a resume between them, and acting."""
    on_cpu = ReplayLearner(make, cfg, spec, 1, 0)
    for batch in batches[:6]:
        on_cpu.update(batch)
    obs = batches[6].obs
    act = {"obs": obs, "memory": np.zeros((len(obs), 0)), "explore": False, "rng": np.random.default_rng(0)}
    with standin() as device:
        first, second = (ReplayLearner(make, cfg, spec, 1, 0, DEVICE) for _ in range(2))
        for batch in batches[:3]:
            first.update(batch)
        second.load({**first.state(), "policy": first.policy.state()})
        for batch in batches[3:6]:
            waits, copies = sum(device.waits.values()), device.copies
            second.update(batch)
            assert sum(device.waits.values()) - waits == 1  # for what is logged
            assert device.copies - copies == 1
        action = second.policy.act(**act).action
        found = {k: v.cpu() for k, v in numbers(second.state()).items() if "rng" not in k}
    for key, value in numbers(on_cpu.state()).items():
        if key in found:
            torch.testing.assert_close(found[key], value, atol=2e-5, rtol=2e-4)
    np.testing.assert_allclose(action, on_cpu.policy.act(**act).action, atol=1e-4)


@pytest.mark.parametrize("change", [{"core": "gru"}, {"core": "lstm", "vtrace": True, "normalize_returns": True}, {}])
def test_on_another_device_ppo_has_the_numbers_of_the_cpu(change):
    """Over pictures, vectors and masks."""
    cfg = PPOConfig(
        hidden=(16,), conv_channels=(4, 6), conv_kernels=(4, 3), conv_strides=(2, 1), conv_features=12, core_size=10,
        rollout_steps=6, minibatches=2, epochs=2, processes=1, shards=1, normalize_obs=True, lr=1e-4, **change,
    )  # fmt: skip
    on_cpu = make_ppo(cfg, Anything.spec, 1, 4, 0)
    player = Player(Anything(4), on_cpu.policy)
    before, rollouts = on_cpu.state(), [player.collect(on_cpu.policy, 6) for _ in range(2)]
    metrics = [on_cpu.update(rollout) for rollout in rollouts]
    obs, memory = rollouts[0].obs[0], np.zeros((4, on_cpu.policy.memory_size), np.float32)
    with standin() as device:
        other = make_ppo(cfg, Anything.spec, 1, 4, 0, DEVICE)
        other.load(before)
        for rollout, wanted in zip(rollouts, metrics, strict=True):
            waits = sum(device.waits.values())
            found = other.update(rollout)
            assert sum(device.waits.values()) - waits <= 6, "an update of four gradient steps waits for what is logged"
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        action = other.policy.act(obs, memory, False, np.random.default_rng(0)).action
    np.testing.assert_allclose(
        action, on_cpu.policy.act(obs, memory, False, np.random.default_rng(0)).action, atol=1e-4
    )
