"""Refinement as part of a run: where its start and its guard come from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from roboloop.algos.frozen import freeze
from roboloop.algos.simgan.refine import DiscriminatorGuard, Refine, make_guard, make_refine
from roboloop.algos.simgan.refine_config import RefineConfig
from roboloop.algos.spec import SavedRun, Setup
from roboloop.core.errors import ConfigError, DataError
from roboloop.envs.frozen import SUFFIX, FrozenPolicy


def make(setup: Setup) -> Refine:
    """Return the algorithm with its start and, where there is one, its guard."""
    algo: RefineConfig = setup.config
    spec, experiment = setup.spec, setup.experiment
    if len(spec.obs_shape) != 1 or spec.obs_dtype.names is not None:
        raise ConfigError(f"refine takes plain observations, {setup.env.id} has {spec.obs_shape}")
    guard = _guard(algo, setup) if algo.guard else None
    if guard is not None and guard.max_lag and (experiment.sample.free_running or setup.num_envs != setup.env.num_envs):
        raise ConfigError("the guard's windows look back on the rollout before: they need all envs in each, in order")
    return make_refine(algo, spec, _start(algo, setup), guard, setup.num_envs, setup.seed, setup.device)


def _start(algo: RefineConfig, setup: Setup) -> FrozenPolicy:
    """Return the policy of a run or a file, with the deviation that it is to begin with."""
    frozen = FrozenPolicy.load(algo.start) if algo.start.endswith(SUFFIX) else _of_run(algo, setup)
    layers = frozen.layers
    dim = layers.action_dim
    # where the last layer says deviations too, its means come first
    weights = (*layers.weights[:-1], layers.weights[-1][:, :dim])
    biases = (*layers.biases[:-1], layers.biases[-1][:dim])
    log_std = np.full(dim, math.log(algo.start_std), np.float32)
    return FrozenPolicy(replace(layers, weights=weights, biases=biases, log_std=log_std))


def _open(setup: Setup, path: str, which: str) -> SavedRun:
    assert setup.open_run is not None, "only a run that trains opens others"
    return setup.open_run(path, which)


def _of_run(algo: RefineConfig, setup: Setup) -> FrozenPolicy:
    run = _open(setup, algo.start, algo.start_checkpoint)
    if run.config.algorithm.learns_from != "rollouts":
        raise DataError(f"algo.start {algo.start} trained {run.config.algo.name}: only an actor of PPO can be refined")
    return freeze(run.policy())


def _guard(algo: RefineConfig, setup: Setup) -> DiscriminatorGuard:
    run = _open(setup, algo.guard, algo.guard_checkpoint)
    if run.config.algo.name != "dynamics":
        raise DataError(f"algo.guard {algo.guard} trained {run.config.algo.name}: only a run of dynamics can guard")
    return make_guard(run.config.algo, setup.spec, run.state, setup.num_envs, setup.seed)
