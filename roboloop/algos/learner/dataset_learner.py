"""A learner that draws windows from a dataset, as the Algorithm that a run trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from roboloop.algos.learner.data_scale import DataScale, scale_of_sources
from roboloop.algos.learner.inputs import Input, ObsInputs
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.trainer import HasTrainer, MakeLearner, Trainer, make_learner
from roboloop.algos.limits import check_task_rows
from roboloop.algos.policy import ActionScale, in_bounds
from roboloop.algos.spec import AlgorithmSpec, Setup
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, EnvSpec, Metrics, State, WindowBatch

SEED_WORDS = 4


class DatasetLearner(HasTrainer):
    """Runs a learner's steps on windows of episodes.

    A loss sees each step of each window as a row, window after window: ``obs``, ``action`` in [-1, 1] units,
    ``return_to_go``, ``t`` and ``weight``. ``(batch.weight * x).sum()`` is the mean of ``x`` over valid steps; padded
    ones weigh nothing, and all their numbers are zero. ``seed`` is for ``prepare``.
    """

    def __init__(
        self,
        make: MakeLearner,
        cfg: Any,
        spec: EnvSpec,
        scale: DataScale,
        seed: int,
        device: str = "cpu",
        policy: type[LearnerPolicy] = LearnerPolicy,
    ) -> None:
        learner = make_learner(make, cfg, spec, 1, seed, device)
        self.cfg, self.num_updates, self.progress = learner.cfg, 0, 0.0
        self._spec, self._num_tasks = spec, getattr(learner, "num_tasks", 1)
        if self._num_tasks > 1:
            check_task_rows(self.cfg, self._num_tasks)
        rows = self.cfg.batch_size * self.cfg.context // self.cfg.shards
        inputs = {f"obs{end}": each for end, each in ObsInputs(learner.fields, learner.reads).arrays(rows).items()}
        inputs |= {"action": Input((rows, spec.action_dim)), "return_to_go": Input((rows,)), "weight": Input((rows,))}
        inputs |= {"t": Input((rows,), "int32"), "seed": Input((SEED_WORDS,), "int32")}
        self.trainer = Trainer(learner, rows, inputs, device, scale.norm(learner.obs_dim), policy)
        self._scale, self._rng = ActionScale(spec), stream(seed, f"{self.cfg.name}-seeds")

    def update(self, batch: WindowBatch) -> Metrics:
        """Take the gradient steps that are due on windows ``[batch_size, context]``, which lie task by task."""
        cfg, trainer = self.cfg, self.trainer
        due = [step for step in trainer.steps if self.num_updates % step.every == 0]
        self._load_batch(batch)
        warm = min(1.0, (self.num_updates + 1) / max(cfg.warmup_updates, 1))
        trainer.take(due, self.num_updates, warm)
        self.num_updates += 1
        limited = [name for step in due for name, adam in step.of.items() if adam.max_grad_norm]
        norm = {"grad_norm": math.hypot(*map(trainer.grad_norm, limited))} if limited else {}
        return {**trainer.metrics(due), **norm, "lr": cfg.lr * warm}

    def _load_batch(self, batch: WindowBatch) -> None:
        """Write the windows as rows, with zeros where they are padded."""
        cfg, trainer, wanted = self.cfg, self.trainer, (self.cfg.batch_size, self.cfg.context)
        if batch.mask.shape != wanted:
            raise ConfigError(f"{cfg.name} was built for {wanted} windows and steps, not {batch.mask.shape}")
        if self._num_tasks > 1:
            batch = WindowBatch(*(self._by_shard(column) for column in batch))
        valid = np.ascontiguousarray(batch.mask, bool).reshape(-1)
        rows, count, padded = len(valid), int(valid.sum()), ~valid
        if not count:
            raise DataError("a batch of windows has no step that is not padding")
        # the mean over shards of their sums is then the mean over all valid steps
        trainer.put("weight", valid * np.float32(cfg.shards / count))
        trainer.put("return_to_go", zeroed(batch.return_to_go.reshape(rows), padded))
        trainer.put("t", np.maximum(zeroed(batch.t.reshape(rows), padded), 0))
        trainer.put("action", self._units(zeroed(batch.action.reshape(rows, -1), padded)))
        # shards draw from seeds that are drawn here, so that they are pure functions of what they are given
        trainer.put("seed", self._rng.integers(0, 2**31, (cfg.shards, SEED_WORDS), dtype=np.int32))
        trainer.put_obs("obs", batch.obs.reshape(rows, *batch.obs.shape[2:]), rows)
        for name in trainer.obs.arrays(rows):
            array = trainer.arrays[f"inputs/obs{name}"]
            array.reshape(rows, -1)[padded] = array.dtype == bool  # where nothing counts every choice is possible

    def _by_shard(self, windows: Array) -> Array:
        """Return windows, which lie task by task, shard by shard: each gets as many of each task."""
        parts = windows.reshape(self._num_tasks, self.cfg.shards, -1, *windows.shape[1:])
        return parts.swapaxes(0, 1).reshape(windows.shape)

    def _units(self, action: Array) -> Array:
        """Return the actions that the environment took, in units of its bounds."""
        for column, n in enumerate(self._spec.action_choices):
            number = action[:, column]
            if n and ((number < 0) | (number >= n)).any():
                raise DataError(f"action column {column} has {n} choices, but the data says {number.max():.0f}")
        return self._scale.to_unit(in_bounds(action, self._spec))

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        return {**self.trainer.state(), "seeds_rng": get_rng_state(self._rng), "num_updates": self.num_updates}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        self.trainer.load(state)
        set_rng_state(self._rng, state["seeds_rng"])
        self.num_updates = self.policy.version = int(state["num_updates"])


def zeroed(rows: Array, padded: Array) -> Array:
    """Return rows with zeros where padded: whatever lies there, even what is not a number, has no effect."""
    if not padded.any():
        return rows
    rows = rows.copy()
    rows[padded] = 0
    return rows


def _make(learner: MakeLearner, setup: Setup) -> DatasetLearner:
    return DatasetLearner(learner, setup.config, setup.spec, scale_of_sources(setup), setup.seed, setup.device)


def _load_policy(learner: MakeLearner, setup: Setup, state: State) -> LearnerPolicy:
    return LearnerPolicy.from_state(learner(setup.config, setup.spec, 1), state)


def record_of_dataset(name: str, config: Callable[[], Any], learner: MakeLearner) -> AlgorithmSpec:
    """Return the record by which a run finds a learner that learns from windows."""
    make, load = partial(_make, learner), partial(_load_policy, learner)
    return AlgorithmSpec(name, config, "dataset", make, load, frame_stack=False)
