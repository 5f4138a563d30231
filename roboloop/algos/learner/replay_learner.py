"""A learner that draws batches from a replay, as the Algorithm that a run trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from roboloop.algos.learner.inputs import Input, ObsInputs
from roboloop.algos.learner.learning_rate import Scheduled
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.trainer import HasTrainer, MakeLearner, Trainer, make_learner, running_norm
from roboloop.algos.policy import ActionScale
from roboloop.algos.spec import AlgorithmSpec, Setup
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Batch, BatchSpec, EnvSpec, Metrics, State, Stateful


class BatchView(Stateful, Protocol):
    """How a batch looks to the learner."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch that it learns from."""
        ...


class ReplayLearner(HasTrainer):
    """Runs a learner's steps on batches: ``update`` takes each that is due."""

    def __init__(
        self,
        make: MakeLearner,
        cfg: Any,
        spec: EnvSpec,
        frame_stack: int,
        seed: int,
        device: str = "cpu",
        view: BatchView | None = None,
    ) -> None:
        learner = make_learner(make, cfg, spec, frame_stack, seed, device)
        self.cfg = cfg = learner.cfg
        self.num_updates, self.progress = 0, 0.0
        self.needs = BatchSpec(cfg.batch_size, cfg.n_step, cfg.gamma, frame_stack, learner.num_tasks, learner.shift_px)
        rows, seen = cfg.batch_size // cfg.shards, ObsInputs(learner.fields, learner.reads)
        inputs = {f"{name}{end}": each for name in ("obs", "next_obs") for end, each in seen.arrays(rows).items()}
        inputs |= {"action": Input((rows, spec.action_dim)), "reward": Input((rows,)), "discount": Input((rows,))}
        self.trainer = Trainer(learner, rows, inputs, device, running_norm(learner, cfg.normalize_obs))
        self._scale, self._rng = ActionScale(spec), stream(seed, "learner-noise")
        self._view, self._order = view, order_in_shards(cfg.batch_size, learner.num_tasks, cfg.shards)
        self._lr_scale = Scheduled(1.0, 0.0 if cfg.lr_schedule == "linear" else 1.0)

    def update(self, batch: Batch) -> Metrics:
        """Take the gradient steps that are due on a batch."""
        due = [step for step in self.trainer.steps if self.num_updates % step.every == 0]
        self._load_batch(batch)
        self.trainer.take(due, self.num_updates, self._lr_scale.at(self.progress))
        self.num_updates += 1
        return self.trainer.metrics(due)

    def _load_batch(self, batch: Batch) -> None:
        trainer, rows = self.trainer, self.cfg.batch_size
        batch = batch if self._view is None else self._view(batch)
        if self._order is not None:
            batch = Batch(*(leaf[self._order] for leaf in batch))
        trainer.norm.update(trainer.obs.fields.vector(batch.obs, rows))
        trainer.put_obs("obs", batch.obs, rows)
        trainer.put_obs("next_obs", batch.next_obs, rows)
        trainer.put("action", self._scale.to_unit(batch.action))
        trainer.put("reward", batch.reward)
        trainer.put("discount", batch.discount)
        trainer.draw_noise(self._rng)

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        view = {} if self._view is None else self._view.state()
        own = {"noise_rng": get_rng_state(self._rng), "num_updates": self.num_updates, "view": view}
        return {**self.trainer.state(), **own}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        self.trainer.load(state)
        set_rng_state(self._rng, state["noise_rng"])
        if self._view is not None:
            self._view.load(state["view"])
        self.num_updates = self.policy.version = int(state["num_updates"])


def order_in_shards(rows: int, num_tasks: int, shards: int) -> Array | None:
    """Return the rows of a batch, which lies task by task, shard by shard; None where they lie so already."""
    if num_tasks == 1:
        return None
    order: Array = np.arange(rows).reshape(num_tasks, shards, -1).swapaxes(0, 1).reshape(-1)
    return order


def _make(learner: MakeLearner, setup: Setup) -> ReplayLearner:
    return ReplayLearner(learner, setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(learner: MakeLearner, setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    return LearnerPolicy.from_state(learner(setup.config, setup.spec, setup.frame_stack), state)


def record(name: str, config: Callable[[], Any], learner: MakeLearner) -> AlgorithmSpec:
    """Return the record by which a run finds a learner."""
    return AlgorithmSpec(name, config, "replay", partial(_make, learner), partial(load_policy, learner))
