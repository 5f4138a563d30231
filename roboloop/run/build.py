"""From a config to the objects of a run."""

from __future__ import annotations

from typing import NamedTuple

from roboloop.core.types import Algorithm
from roboloop.data.replay import Replay
from roboloop.envs import registry
from roboloop.run.config import Experiment
from roboloop.run.evaluate import Evaluator
from roboloop.sample.serial import SerialSampler


class Parts(NamedTuple):
    """The nouns of one run."""

    sampler: SerialSampler
    store: Replay
    algo: Algorithm
    evaluator: Evaluator


def build(cfg: Experiment) -> Parts:
    """Make everything a run needs; nothing is on disk yet."""
    from roboloop.algos.sac import SAC  # torch is loaded only when it is needed

    sampler = SerialSampler([registry.make(cfg.env) for _ in range(cfg.env.num_envs)], cfg.seed, cfg.env.frame_stack)
    algo = SAC(cfg.algo, sampler.spec, cfg.env.frame_stack, cfg.seed, cfg.device)
    store = Replay(cfg.replay.capacity, sampler.spec, cfg.env.num_envs, algo.needs, cfg.seed)
    return Parts(sampler, store, algo, evaluator(cfg, min(cfg.eval.episodes, 10)))


def evaluator(cfg: Experiment, lanes: int) -> Evaluator:
    """Make an evaluator with the config's evaluation environments."""
    return Evaluator(lambda: registry.make(cfg.env, evaluation=True), cfg.env.frame_stack, lanes)
