"""Refinement as part of a run: where its start and its guard come from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from roboloop.algos.dynamics_config import DynamicsConfig
from roboloop.algos.refine import Guard, Refine, make_guard, make_refine
from roboloop.algos.refine_config import RefineConfig
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import EnvSpec
from roboloop.envs.frozen import SUFFIX, FrozenPolicy
from roboloop.run.config import Experiment
from roboloop.run.posthoc import pick
from roboloop.run.rundir import RunDir, find_run


def make(cfg: Experiment, algo: RefineConfig, spec: EnvSpec, num_envs: int) -> Refine:
    """Return the algorithm with its start and, where there is one, its guard."""
    if len(spec.obs_shape) != 1 or spec.obs_dtype.names is not None:
        raise ConfigError(f"refine takes plain observations, {cfg.env.id} has {spec.obs_shape}")
    guard = _guard(algo, spec, num_envs, cfg.seed) if algo.guard else None
    if guard is not None and guard.max_lag and (cfg.sample.free_running or num_envs != cfg.env.num_envs):
        raise ConfigError("the guard's windows look back on the rollout before: they need all envs in each, in order")
    return make_refine(algo, spec, _start(algo), guard, num_envs, cfg.seed, cfg.device)


def _start(algo: RefineConfig) -> FrozenPolicy:
    """Return the policy of a run or a file, with the deviation that it is to begin with."""
    frozen = FrozenPolicy.load(algo.start) if algo.start.endswith(SUFFIX) else _of_run(algo)
    layers = frozen.layers
    dim = layers.action_dim
    # where the last layer says deviations too, its means come first
    weights = (*layers.weights[:-1], layers.weights[-1][:, :dim])
    biases = (*layers.biases[:-1], layers.biases[-1][:dim])
    log_std = np.full(dim, math.log(algo.start_std), np.float32)
    return FrozenPolicy(replace(layers, weights=weights, biases=biases, log_std=log_std))


def _of_run(algo: RefineConfig) -> FrozenPolicy:
    from roboloop.algos.frozen import freeze
    from roboloop.run.build import policy_of, spec_of

    run = RunDir.open(find_run(Path(algo.start)))
    if run.config.on_policy is None:
        raise DataError(f"algo.start {algo.start} trained {run.config.algo.name}: only an actor of PPO can be refined")
    point = pick(run, algo.start_checkpoint)
    return freeze(policy_of(run.config, spec_of(run.config), point))


def _guard(algo: RefineConfig, spec: EnvSpec, num_envs: int, seed: int) -> Guard:
    run = RunDir.open(find_run(Path(algo.guard)))
    if not isinstance(run.config.algo, DynamicsConfig):
        raise DataError(f"algo.guard {algo.guard} trained {run.config.algo.name}: only a run of dynamics can guard")
    return make_guard(run.config.algo, spec, pick(run, algo.guard_checkpoint).state["algo"], num_envs, seed)
