"""What a run says of the device that it learns on."""

import dataclasses

import numpy as np
import pytest
import torch

from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec
from roboloop.run import device, plan
from roboloop.run.config import Experiment
from roboloop.sample.buffers import RolloutShape
from roboloop.track.usage import Usage
from tests.learner.standin import DEVICE

GB = 1_000_000_000
SPEC = EnvSpec((3,), np.dtype(np.float32), (-1.0,), (1.0,), 100)


@pytest.fixture
def with_memory(monkeypatch):
    """The stand-in with a backend that tells its memory, as those of GPUs do."""
    known = {"mem_get_info": (3 * GB, 4 * GB), "get_device_name": "Stand-in 4000", "memory_allocated": 5_000_000,
             "max_memory_allocated": 7_000_000}  # fmt: skip
    backend = torch.get_device_module(DEVICE)
    for name, answer in known.items():
        monkeypatch.setattr(type(backend), name, lambda self, asked, answer=answer: answer, raising=False)
    return known


def test_a_device_tells_model_and_memory(with_memory):
    assert device.describe(f"{DEVICE}:0") == f"{DEVICE}:0 (Stand-in 4000, 3.0 of 4.0 GB free)"
    assert device.memory_of(DEVICE) == (3 * GB, 4 * GB)
    assert device.memory_taken(DEVICE) == {"device_memory_mb": 5.0, "device_memory_max_mb": 7.0}


def test_a_device_that_tells_nothing_is_named_alone():
    assert device.describe(DEVICE) == DEVICE
    assert device.memory_of(DEVICE) is None
    assert device.memory_taken(DEVICE) == device.memory_taken("cpu") == {}


def test_the_plan_says_where_updates_run(with_memory):
    shape = RolloutShape(SPEC, 1, 1, 1)
    said = plan.describe(dataclasses.replace(Experiment(), device=DEVICE), shape)
    assert f"updates on {DEVICE} (Stand-in 4000, 3.0 of 4.0 GB free) by this process; rollouts" in said
    assert "updates by up to 2 processes, one thread each; rollouts" in plan.describe(Experiment(), shape)


def test_what_a_run_uses_names_the_memory_of_its_device(with_memory):
    usage = Usage(lambda: device.memory_taken(DEVICE), every_s=0.0)
    assert usage.look()["device_memory_max_mb"] == 7.0


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="'device' must be one that is here, not 'cuda'"):
        device.check_device("cuda")
