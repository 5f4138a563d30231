"""The whole loop learns to pick the peg that is out of its hole and to put it back."""

import pytest

from roboloop.algos.pick.config import PickConfig
from roboloop.algos.pick.pick import make_pick
from roboloop.algos.pick.policy import RandomPicks
from roboloop.core.config import override
from roboloop.data.replay import Replay
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from roboloop.run.evaluate import TEST, Evaluator, Plan, Summary
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler

RATES = {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3, "initial_alpha": 0.02, "gamma": 0.5}
SAC = {"hidden": [64, 64], "batch_size": 128, "processes": 1, "layer_norm": True, "target_entropy": -4.0, **RATES}


def learned(env_id: str, updates: int, **changes) -> tuple[Summary, Summary]:
    """Return what picking and placing at random brings, and what was learned."""
    env, cfg = EnvConfig(id=env_id), override(PickConfig(), {"sac": SAC, **changes})
    shape = RolloutShape(make(env).spec, steps=1, num_envs=4, frame_stack=1)
    sampler = SerialSampler(lambda _: make(env), plans(4, 1, seed=0), shape)
    algo, at_random = make_pick(cfg, sampler.spec, seed=0), RandomPicks(sampler.spec)
    store = Replay(20_000, sampler.spec, 4, algo.needs, seed=0)
    evaluator = Evaluator(lambda _: make(env), 1, lanes=10)
    for _ in range(100):
        store.add(sampler.collect(at_random))
    for _ in range(updates):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    plan = Plan(50, 0, TEST)
    return evaluator.run(at_random, plan), evaluator.run(algo.policy, plan)


@pytest.mark.parametrize("in_training", ["uniform", "mvp"])
def test_choosing_the_best_pick_solves_what_placing_at_random_picks_does_not(in_training):
    _, mvp = learned("tiny/pegs", 1000, pick="mvp", pick_in_training=in_training, training_top_fraction=0.5)
    assert mvp.success >= 0.8
    if in_training == "uniform":
        at_random, uniform = learned("tiny/pegs", 1000, pick="uniform")
        assert uniform.success < 0.6
        assert mvp.return_low > uniform.return_high > uniform.return_low > at_random.return_high


def test_corners_are_picked_by_number():
    assert learned("tiny/pegs-corner", 1000, pick="mvp")[1].success >= 0.8


@pytest.mark.parametrize("kind", ["joint", "autoregressive"])
def test_actors_that_pick_by_themselves_do_better_than_chance(kind):
    at_random, own = learned("tiny/pegs-corner", 500, pick=kind)
    assert own.return_low > at_random.return_high
