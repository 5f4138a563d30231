"""A learner that draws batches from a replay, as the Algorithm that a run trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from roboloop.algos.learner.adam import MAX_ADAM_STEP
from roboloop.algos.learner.learner import Learner, Step, check_learner
from roboloop.algos.learner.learning_rate import Scheduled
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.shards import ShardPool
from roboloop.algos.learner.staging import Given
from roboloop.algos.learner.work import METRICS, LearnerShard, LearnerWork, lay
from roboloop.algos.policy import ActionScale
from roboloop.algos.spec import AlgorithmSpec, Setup
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.fields import PICKS
from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.types import Batch, BatchSpec, EnvSpec, Metrics, State
from roboloop.nets.flat import Views, clone, restore
from roboloop.nets.normalize import Identity, Normalizer, RunningNorm

MakeLearner = Callable[[Any, EnvSpec, int], Learner]
"""From config, spec and frame stack; usually the class."""


class ReplayLearner:
    """Runs a learner's steps on batches: ``update`` takes each that is due."""

    def __init__(
        self, make: MakeLearner, cfg: Any, spec: EnvSpec, frame_stack: int, seed: int, device: str = "cpu"
    ) -> None:
        cfg.check()
        if device != "cpu":  # there, kernels are wide: one shard has half as many
            cfg = dataclasses.replace(cfg, shards=1)
        self.cfg, self.num_updates, self.progress = cfg, 0, 0.0
        self.needs = BatchSpec(cfg.batch_size, cfg.n_step, cfg.gamma, frame_stack)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "learner-init"))
            learner = make(cfg, spec, frame_stack)
        check_learner(learner)
        refuse_what_it_cannot_take(learner, spec)
        self._steps, self._fields = learner.steps(), learner.fields
        self._phases = tuple(phase for step in self._steps for phase in phases_of(step))
        row = {"obs": (learner.obs_dim,), "next_obs": (learner.obs_dim,), "action": (spec.action_dim,)}
        inputs = {**row, "reward": (), "discount": ()}
        work = LearnerWork(learner, cfg.batch_size // cfg.shards, inputs)
        self._pool = ShardPool(work, work.num_floats, cfg.shards, cfg.processes, device)
        self._mem = work.views(self._pool.memory)
        self._weights = work.weights
        self._views = self._weights.views(self._mem)
        lay(learner, self._views, keep=True)
        self._given = Given(work.given, self._mem["given"])
        self._noise = [name for name in work.given.shapes if name.startswith("noise/")]
        self._norm: Normalizer = RunningNorm(learner.obs_dim) if cfg.normalize_obs else Identity()
        self._policy = LearnerPolicy(learner, self._norm, self._views)
        self._scale, self._rng = ActionScale(spec), stream(seed, "learner-noise")
        self._lr_scale = Scheduled(1.0, 0.0 if cfg.lr_schedule == "linear" else 1.0)

    @property
    def policy(self) -> LearnerPolicy:
        """The live policy: each update changes it."""
        return self._policy

    def update(self, batch: Batch) -> Metrics:
        """Take the gradient steps that are due on a batch."""
        due = [step for step in self._steps if self.num_updates % step.every == 0]
        self._load_batch(batch)
        for step in due:
            for name, adam in step.of.items():
                self._given.arrays[f"{name}/step"][0] = min(self.num_updates // step.every + 1, MAX_ADAM_STEP)
                self._given.arrays[f"{name}/lr"][0] = self._lr_scale.at(self.progress) if adam.scheduled else 1.0
        self._given.send()
        self._pool.run([phase for step in due for phase in phases_of(step)])
        self.num_updates += 1
        self._policy.version = self.num_updates
        return self._metrics(due)

    def _metrics(self, due: list[Step]) -> dict[str, float]:
        shard: LearnerShard = self._pool.own_shard
        values = self._mem["metrics"].mean(0).tolist()
        metrics: dict[str, float] = {}
        for i, step in enumerate(self._steps):
            if step in due:
                metrics |= zip(shard.losses[step.loss].names, values[i * METRICS :], strict=False)
        return metrics

    def _load_batch(self, batch: Batch) -> None:
        put, rows = self._given.put, self.cfg.batch_size
        obs, next_obs = (self._fields.vector(o, rows) for o in (batch.obs, batch.next_obs))
        self._norm.update(obs)
        put("inputs/obs", self._norm(obs))
        put("inputs/next_obs", self._norm(next_obs))
        put("inputs/action", self._scale.to_unit(batch.action))
        put("inputs/reward", batch.reward)
        put("inputs/discount", batch.discount)
        for name in self._noise:  # all noise is drawn here, so that the shards are pure functions
            self._rng.standard_normal(out=self._given.arrays[name], dtype="float32")

    def _others(self) -> Views:
        """Return what is saved beside the policy, by full name."""
        return {name: view for name, view in self._views.items() if name not in self._policy.names}

    def _moments(self) -> dict[str, Views]:
        return {
            f"{name}/{moment}": self._weights.segment(name, self._mem[f"{name}/{moment}"])
            for step in self._steps for name in step.of for moment in ("m", "v")
        }  # fmt: skip

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        return {
            "policy": self._policy.state(),
            "modules": clone(self._others()),
            "moments": {name: clone(views) for name, views in self._moments().items()},
            "noise_rng": get_rng_state(self._rng),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        if "modules" not in state:
            raise DataError("an earlier version saved this run: its policy can be used, but its training cannot go on")
        self._policy.load(state["policy"])
        restore(self._others(), state["modules"], "modules")
        for name, views in self._moments().items():
            restore(views, state["moments"].get(name, {}), name)
        set_rng_state(self._rng, state["noise_rng"])
        self.num_updates = self._policy.version = int(state["num_updates"])

    def wait_until_ready(self) -> None:
        """Wait for the helper processes; for benchmarks, since training starts without them."""
        self._pool.wait_until_ready()

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._pool.messages()

    def close(self) -> None:
        """Stop the helper processes and release their memory."""
        self._pool.close()


def phases_of(step: Step) -> list[str]:
    """Return the phases that a step is made of."""
    limited = any(adam.max_grad_norm for adam in step.of.values())
    return [f"{step.loss}/{phase}" for phase in ("gradients", *["sum"] * limited, "move")]


def refuse_what_it_cannot_take(learner: Learner, spec: EnvSpec) -> None:
    """Raise ConfigError for choices, picks and pictures."""
    kind = type(learner).__name__
    if not spec.is_continuous:
        raise ConfigError(f"{kind} needs continuous actions; PPO takes choices: --algo ppo")
    names = spec.obs_dtype.names or ()
    if PICKS in names:
        raise ConfigError(f"{kind} takes vectors, not the fields {', '.join(names)}; --algo pick chooses among picks")
    if learner.fields.pictures:
        raise ConfigError(f"{kind} takes vectors, not pictures; SAC and PPO take both: --algo sac")


def _make(learner: MakeLearner, setup: Setup) -> ReplayLearner:
    return ReplayLearner(learner, setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def _load_policy(learner: MakeLearner, setup: Setup, state: State) -> LearnerPolicy:
    return LearnerPolicy.from_state(learner(setup.config, setup.spec, setup.frame_stack), state)


def record(name: str, config: Callable[[], Any], learner: MakeLearner) -> AlgorithmSpec:
    """Return the record by which a run finds a learner."""
    return AlgorithmSpec(name, config, "replay", partial(_make, learner), partial(_load_policy, learner))
