"""Two tasks that ask for opposite actions in the same states: who does not tell them apart must fail."""

import pytest

from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import make_mtsac
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.data.replay import Replay
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler

CONFIG = EnvConfig(id="tiny/point+mirror")
RATES = {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3, "initial_alpha": 0.1, "gamma": 0.9}
SHARED = {"hidden": (32, 32), "batch_size": 64, "processes": 1, **RATES}
ALGOS = {
    "heads": MTSACConfig(head_hidden=(32,), **SHARED),
    "plain": MTSACConfig(net="plain", **SHARED),
    "soft": MTSACConfig(net="soft", module_width=32, gate_hidden=(32, 32), task_weights="temperature", **SHARED),
    "normalised": MTSACConfig(head_hidden=(), normalize_reward=True, normalize_obs=True, **SHARED),
    "single-task": SACConfig(**SHARED),
}


@pytest.mark.parametrize("cfg", ALGOS.values(), ids=ALGOS.keys())
def test_both_tasks_are_learned(cfg):
    shape = RolloutShape(make(CONFIG).spec, steps=1, num_envs=4)
    sampler = SerialSampler(lambda e: make(CONFIG, column=e), plans(4, 1, seed=0), shape)
    algo = (make_sac if isinstance(cfg, SACConfig) else make_mtsac)(cfg, sampler.spec, 1, seed=0)
    store = Replay(20_000, sampler.spec, 4, algo.needs, seed=0)
    evaluator = Evaluator(lambda e: make(CONFIG, column=e), 1, lanes=10)
    for _ in range(50):
        store.add(sampler.collect(UniformPolicy(sampler.spec)))
    for _ in range(1200):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    found = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert found.episodes == 40
    assert {task: facts["success"] >= 0.9 for task, facts in found.by_task.items()} == {"point": True, "mirror": True}
