"""The whole loop learns: a point on a line is steered to a goal, with and without every option of SAC."""

import pytest

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

CONFIG = EnvConfig(id="tiny/point")


@pytest.mark.parametrize(
    "options",
    [{}, {"n_step": 3}, {"layer_norm": True, "normalize_obs": True}, {"alpha": 0.01}],
    ids=["plain", "n-step", "norms", "fixed-temperature"],
)
@pytest.mark.parametrize("frame_stack", [1, 2])
def test_sac_steers_the_point_to_its_goal(options, frame_stack):
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3, "initial_alpha": 0.1, "gamma": 0.9}
    cfg = SACConfig(hidden=(32, 32), batch_size=64, processes=1, **rates, **options)
    shape = RolloutShape(make(CONFIG).spec, steps=1, num_envs=4, frame_stack=frame_stack)
    sampler = SerialSampler(lambda _: make(CONFIG), plans(4, 1, seed=0), shape)
    algo = make_sac(cfg, sampler.spec, frame_stack, seed=0)
    store = Replay(20_000, sampler.spec, 4, algo.needs, seed=0)
    evaluator = Evaluator(lambda _: make(CONFIG), frame_stack, lanes=10)
    before = evaluator.run(algo.policy, Plan(20, 0, TEST))
    for _ in range(50):
        store.add(sampler.collect(UniformPolicy(sampler.spec)))
    for _ in range(800):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    after = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert after.success >= 0.95
    assert after.episode_return > before.episode_return / 2
