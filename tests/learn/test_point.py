"""The whole loop learns: a point on a line is steered to a goal, with and without every option of SAC."""

import numpy as np
import pytest

from roboloop.algos.config import SACConfig
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.sac import SAC
from roboloop.core.types import EnvSpec
from roboloop.data.replay import Replay
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.sample.serial import SerialSampler


class Point:
    """Moves by up to 0.2 a step for ten steps; the reward is minus the distance to the goal."""

    spec = EnvSpec((2,), "float32", (-0.2,), (0.2,), 10)

    def reset(self, seed):
        self.x, self.goal = np.random.default_rng(seed).uniform(-1, 1, 2)
        self.steps = 0
        return self._obs()

    def step(self, action):
        self.x += float(action[0])
        self.steps += 1
        distance = abs(self.x - self.goal)
        return self._obs(), -distance, False, self.steps == 10, {"success": float(distance < 0.05)}

    def _obs(self):
        return np.array([self.x, self.goal], np.float32)

    def close(self):
        pass


@pytest.mark.parametrize(
    "options",
    [{}, {"n_step": 3}, {"layer_norm": True, "normalize_obs": True}, {"alpha": 0.01}],
    ids=["plain", "n-step", "norms", "fixed-temperature"],
)
@pytest.mark.parametrize("frame_stack", [1, 2])
def test_sac_steers_the_point_to_its_goal(options, frame_stack):
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3, "initial_alpha": 0.1, "gamma": 0.9}
    cfg = SACConfig(hidden=(32, 32), batch_size=64, processes=1, **rates, **options)
    sampler = SerialSampler([Point() for _ in range(4)], seed=0, frame_stack=frame_stack)
    algo = SAC(cfg, sampler.spec, frame_stack, seed=0)
    store = Replay(20_000, sampler.spec, 4, algo.needs, seed=0)
    evaluator = Evaluator(Point, frame_stack, lanes=10)
    before = evaluator.run(algo.policy, Plan(20, 0, TEST))
    store.add(sampler.collect(UniformPolicy(sampler.spec), 50))
    for _ in range(800):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    after = evaluator.run(algo.policy, Plan(20, 0, TEST))
    assert after.success >= 0.95
    assert after.episode_return > before.episode_return / 2
