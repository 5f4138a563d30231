"""Auxiliary tasks of the Panda rig: found without its simulator, and what its own experts bring about."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.envs import EnvConfig, auxiliary_tasks, make, scripted_policy
from roboloop.envs.check import check_tasks
from roboloop.envs.panda.auxiliary import NAMES
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.suite import PandaEnvConfig

needs_panda = pytest.mark.skipif(find_spec("pybullet_data") is None, reason="the extra panda is not installed")


def test_tasks_are_known_without_a_simulator() -> None:
    code = (
        "import sys; from roboloop.envs import EnvConfig, auxiliary_tasks\n"
        "print([auxiliary_tasks(EnvConfig(id=i)).names for i in ('panda/drawer', 'play/move')])\n"
        "print([m for m in ('mujoco', 'torch', 'gymnasium', 'pybullet_data') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[('open', 'reach', 'grasp'), ('move', 'place', 'reach', 'grasp', 'release')]",
        "[]",
    ]


def test_a_spec_travels_with_its_tasks_and_an_older_one_has_none() -> None:
    spec = make(EnvConfig(id="play/place")).spec
    data = spec_to_data(spec)
    assert spec_from_data(data) == spec
    del data["tasks"]
    assert spec_from_data(data).tasks == ()


@needs_panda
@pytest.mark.parametrize("task", NAMES)
def test_the_rigs_tasks_are_pure_functions_of_its_observations(task: str) -> None:
    cfg = EnvConfig(id=f"panda/{task}")
    check_tasks(make(cfg), auxiliary_tasks(cfg), steps=12)


@needs_panda
def test_a_rig_with_other_senses_declares_no_tasks() -> None:
    cfg = PandaEnvConfig(id="panda/drawer", panda=PandaConfig(observe=("ee_pos", "object")))
    assert make(cfg).spec.tasks == ()
    check_tasks(make(cfg), auxiliary_tasks(cfg), steps=3)


def episode(cfg: EnvConfig, name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    env, expert = make(cfg), scripted_policy(cfg.id, name)
    obs, ended, rows = env.reset(seed), False, []
    while not ended:
        action = expert.act(obs[None], np.zeros((1, 0)), False, np.random.default_rng(0)).action[0]
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, after, reward))
        obs, ended = after, terminated or truncated
    before, actions, afters, rewards = (np.array(column) for column in zip(*rows, strict=True))
    return before, actions, afters, rewards


@needs_panda
@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in NAMES.items() for name in names])
def test_the_expert_of_each_task_ends_in_its_success(task: str, name: str) -> None:
    cfg = EnvConfig(id=f"panda/{task}")
    tasks, column = auxiliary_tasks(cfg), NAMES[task].index(name)
    solved = [tasks.task_successes(*episode(cfg, name, seed)[:3])[-3:, column].all() for seed in range(3)]
    assert sum(solved) == 3


@needs_panda
@pytest.mark.parametrize("task", ["reach", "push", "door"])
def test_the_reward_of_the_main_task_is_the_rigs_own(task: str) -> None:
    cfg = EnvConfig(id=f"panda/{task}")
    before, actions, afters, rewards = episode(cfg, NAMES[task][0], seed=1)
    found = auxiliary_tasks(cfg).task_rewards(before, actions, afters)[:, 0]
    assert found == pytest.approx(rewards, abs=1e-3)
