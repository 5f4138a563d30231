"""Takes the gradient steps of a learner: modules in shared memory, shards, optimisers, and what is saved of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from roboloop.algos.learner.inputs import Given, Input, ObsInputs, put
from roboloop.algos.learner.learner import Learner, Step, check_learner
from roboloop.algos.learner.optimizer import MAX_ADAM_STEP
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.shards import ShardPool
from roboloop.algos.learner.work import PREPARE, LearnerShard, LearnerWork, lay
from roboloop.core.errors import DataError
from roboloop.core.rng import derive
from roboloop.core.shared_state import drawn_from
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.flat import Views, clone, restore
from roboloop.nets.normalize import Identity, Normalizer, RunningNorm

MakeLearner = Callable[[Any, EnvSpec, int], Learner]
"""From config, spec and frame stack; usually the class."""


def make_learner(make: MakeLearner, cfg: Any, spec: EnvSpec, frame_stack: int, seed: int, device: str) -> Learner:
    """Return a learner with its first weights, which follow from the seed."""
    cfg.check()
    if device != "cpu":  # there, kernels are wide: one shard has half as many
        cfg = dataclasses.replace(cfg, shards=1)
    with drawn_from(derive(seed, "learner-init")):
        learner = make(cfg, spec, frame_stack)
    check_learner(learner)
    return learner


class Trainer:
    """Owns a learner's modules; who uses it says what they are given, and which steps are due."""

    def __init__(
        self,
        learner: Learner,
        rows: int,
        inputs: Mapping[str, Input],
        device: str,
        norm: Normalizer | None = None,
        policy: type[LearnerPolicy] = LearnerPolicy,
    ) -> None:
        """Lay out the memory for shards of so many rows; ``norm`` scales vectors of observations."""
        cfg = learner.cfg
        self.steps, self.obs = learner.steps(), ObsInputs(learner.fields, learner.reads)
        work = LearnerWork(learner, rows, inputs)
        self.pool = ShardPool(work, work.num_floats, cfg.shards, cfg.processes, device)
        self.memory = work.views(self.pool.memory)
        self._weights, self._prepares, self._per_step = work.weights, work.prepares, work.metrics_per_step
        self.views: Views = self._weights.views(self.memory)
        lay(learner, self.views, keep=True)
        self._given, self._staged = (
            Given(a, self.memory[n]) for n, a in (("given", work.given), ("staged", work.staged))
        )
        self.arrays = {**self._given.arrays, **self._staged.arrays}
        self._noise = [array for name, array in self._given.arrays.items() if name.startswith("noise/")]
        self.norm: Normalizer = Identity() if norm is None else norm
        self.policy = policy(learner, self.norm, self.views)

    def put(self, name: str, values: Array | np.float32) -> None:
        """Write an input."""
        put(self.arrays[f"inputs/{name}"], np.asarray(values))

    def put_obs(self, name: str, obs: Array, rows: int) -> None:
        """Write observations, vectors normalised."""
        self.obs.write(obs, rows, self.arrays, f"inputs/{name}", self.norm)

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Draw what losses are given; all of it is drawn here, so that shards are pure functions."""
        for array in self._noise:
            rng.standard_normal(out=array, dtype="float32")

    def send_common(self) -> None:
        """Make known the inputs that all shards see."""
        self._staged.send()

    def take(self, due: Sequence[Step], number: int, lr_scale: float) -> None:
        """Take gradient steps; ``number`` counts updates from 0, ``lr_scale`` multiplies scheduled step sizes."""
        for step in due:
            for name, adam in step.of.items():
                self._given.arrays[f"{name}/step"][0] = min(number // step.every + 1, MAX_ADAM_STEP)
                self._given.arrays[f"{name}/lr"][0] = lr_scale if adam.scheduled else 1.0
        self._given.send()
        self.pool.run(self.phases(due))
        self.policy.version = number + 1

    def phases(self, due: Sequence[Step]) -> list[str]:
        """Return the phases of an update."""
        return [*[PREPARE] * self._prepares, *(phase for step in due for phase in phases_of(step))]

    def metrics(self, due: Sequence[Step]) -> dict[str, float]:
        """Return what the losses of these steps said, averaged over shards."""
        return self.named(due, self.said().tolist())

    def said(self) -> Tensor:
        """Return what the losses said last, on the device: for whoever asks later, and once for many updates."""
        return self.memory["metrics"].mean(0)

    def named(self, due: Sequence[Step], values: Sequence[float]) -> dict[str, float]:
        """Return numbers of ``said`` by name."""
        shard: LearnerShard = self.pool.own_shard
        said: dict[str, float] = {}
        for i, step in enumerate(self.steps):
            if step in due:
                said |= zip(shard.losses[step.loss].names, values[i * self._per_step :], strict=False)
        return said

    def grad_norm(self, name: str) -> Tensor:
        """Return how long the last gradient of a module was, before it was shortened; only where it is limited."""
        return self.memory[f"{name}/squares"][:, 0].sum().sqrt()

    def _others(self) -> Views:
        """Return what is saved beside the policy, by full name."""
        return {name: view for name, view in self.views.items() if name not in self.policy.names}

    def _moments(self) -> dict[str, Views]:
        return {
            f"{name}/{moment}": self._weights.segment(name, self.memory[f"{name}/{moment}"])
            for step in self.steps for name in step.of for moment in ("m", "v")
        }  # fmt: skip

    def state(self) -> State:
        """Return policy, other modules and moments, as copies."""
        moments = {name: clone(views) for name, views in self._moments().items()}
        return {"policy": self.policy.state(), "modules": clone(self._others()), "moments": moments}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        if "modules" not in state:
            raise DataError("an earlier version saved this run: its training cannot go on with this one")
        self.policy.load(state["policy"])
        restore(self._others(), state["modules"], "modules")
        for name, views in self._moments().items():
            restore(views, state["moments"].get(name, {}), name)

    def wait_until_ready(self) -> None:
        """Wait for the helper processes; for benchmarks, since training starts without them."""
        self.pool.wait_until_ready()

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self.pool.messages()

    def close(self) -> None:
        """Stop the helper processes and release their memory."""
        self.pool.close()


class HasTrainer:
    """What every algorithm that takes its steps by a trainer passes on."""

    trainer: Trainer

    @property
    def policy(self) -> LearnerPolicy:
        """The live policy: each update changes it."""
        return self.trainer.policy

    def wait_until_ready(self) -> None:
        """Wait for the helper processes; for benchmarks, since training starts without them."""
        self.trainer.wait_until_ready()

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self.trainer.messages()

    def close(self) -> None:
        """Stop the helper processes and release their memory."""
        self.trainer.close()


def phases_of(step: Step) -> list[str]:
    """Return the phases that a step is made of."""
    limited = any(adam.max_grad_norm for adam in step.of.values())
    return [f"{step.loss}/{phase}" for phase in ("gradients", *["sum"] * limited, "move")]


def running_norm(learner: Learner, is_wanted: bool) -> Normalizer:
    """Return what learns the scale of observations' vectors, where it is wanted and there are any."""
    vector_dim = learner.fields.vector_dim
    return RunningNorm(vector_dim) if is_wanted and vector_dim else Identity()
