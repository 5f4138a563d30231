"""Containers often have a /dev/shm of 64 MB: we do not use it, and say so."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, shutil
from roboloop.core.config import override
from roboloop.run.build import build
from roboloop.run.config import Experiment

cfg = override(Experiment(), {
    "env": {"id": "gym/tests.sample.kit:Big-v0", "num_envs": 4},
    "sample": {"groups": 2, "workers": 2}, "eval": {"episodes": 1},
    "algo": {"name": "ppo", "rollout_steps": 40, "hidden": [1], "minibatches": 1, "processes": 1},
})
parts = build(cfg)
rollout = parts.sampler.collect(parts.algo.policy)
assert shutil.disk_usage("/dev/shm").total == 64 << 20
assert rollout.obs.nbytes > 64 << 20
assert rollout.obs[9, 3, 0] == 9
print(parts.plan)
parts.sampler.close()
"""


def can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mounting a small /dev/shm needs root")
def test_rollouts_larger_than_dev_shm_are_collected_all_the_same():
    script = f"mount -t tmpfs -o size=64m tmpfs /dev/shm && exec {sys.executable} -c '{CODE}'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script.replace('"""', "")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "/dev/shm, 67 MB free, is not used" in done.stdout
