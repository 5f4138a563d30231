"""Learners update, act, save and resume on a device that is not the CPU, with the CPU's numbers."""

import dataclasses

import numpy as np
import pytest
import torch
from outside.crossq import CrossQ, CrossQConfig
from outside.td3 import TD3, TD3Config
from outside.tqc import TQC, TQCConfig

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.sac import SAC
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


@pytest.mark.parametrize("name", LEARNERS)
def test_on_another_device_a_learner_has_the_numbers_of_the_cpu_and_waits_once_an_update(name):
    make, cfg = LEARNERS[name]
    on_cpu = ReplayLearner(make, cfg, SPEC, 1, 0)
    for i in range(6):
        on_cpu.update(batch_of(i))
    act = {"obs": batch_of(9).obs, "memory": np.zeros((8, 0)), "explore": False, "rng": np.random.default_rng(0)}
    with standin() as device:
        first, second = (ReplayLearner(make, cfg, SPEC, 1, 0, DEVICE) for _ in range(2))
        for i in range(3):
            first.update(batch_of(i))
        second.load({**first.state(), "policy": first.policy.state()})
        for i in range(3, 6):
            waits, copies = sum(device.waits.values()), device.copies
            second.update(batch_of(i))
            assert sum(device.waits.values()) - waits == 1  # for what is logged
            assert device.copies - copies == 1
        action = second.policy.act(**act).action
        found = {k: v.cpu() for k, v in numbers(second.state()).items() if "rng" not in k}
    for key, value in numbers(on_cpu.state()).items():
        if key in found:
            torch.testing.assert_close(found[key], value, atol=2e-5, rtol=2e-4)
    np.testing.assert_allclose(action, on_cpu.policy.act(**act).action, atol=1e-4)
