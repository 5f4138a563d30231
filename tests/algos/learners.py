"""What a learner's shards compute of a batch, without moving anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.core.types import Batch, State
from roboloop.nets.flat import Views


def gradients(algo: ReplayLearner, batch: Batch, seed: int = 0) -> Views:
    """Return the gradients of all losses, of the whole batch, by the names of parameters; the noise is of the seed."""
    algo._rng = np.random.default_rng(seed)
    algo._load_batch(batch)
    trainer = algo.trainer
    trainer.pool.run([f"{step.loss}/gradients" for step in trainer.steps])
    found: Views = {}
    for name in (name for step in trainer.steps for name in step.of):
        for grad in trainer.memory[f"{name}/grad"]:
            for full, part in trainer._weights.segment(name, grad).items():
                found[full] = found[full] + part if full in found else part.clone()
    return found


def doubles(algo: ReplayLearner) -> Views:
    """Return all parameters as leaves of a graph, in double precision."""
    return {name: view.double().clone().requires_grad_() for name, view in algo.trainer.views.items()}


def noise(algo: ReplayLearner, name: str) -> torch.Tensor:
    """Return what a loss was given, ``[shards, rows, ...]``."""
    return algo.trainer.memory[f"noise/{name}"]


def saved_policy(algo: ReplayLearner, state: State | None = None) -> LearnerPolicy:
    """Return the policy that a saved state of the algorithm gives."""
    learner = algo.policy.learner
    made = type(learner)(learner.cfg, learner.spec, learner.frame_stack)
    return LearnerPolicy.from_state(made, algo.state() if state is None else state)


def saved_learner(algo: ReplayLearner) -> Any:
    """Return a learner whose modules are copies of the algorithm's."""
    learner = algo.policy.learner
    made = type(learner)(learner.cfg, learner.spec, learner.frame_stack)
    made.load_state_dict({name: view.clone() for name, view in algo.trainer.views.items()})
    return made


def under(prefix: str, views: Views) -> Views:
    """Return the views whose names start with ``prefix.``, without it."""
    return {name.removeprefix(f"{prefix}."): view for name, view in views.items() if name.startswith(f"{prefix}.")}
