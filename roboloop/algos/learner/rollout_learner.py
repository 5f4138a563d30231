"""A learner that learns from rollouts, each of them once, as the Algorithm that a run trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.learner.config import check_split
from roboloop.algos.learner.learning_rate import make_learning_rate
from roboloop.algos.learner.on_policy import FACTS, OnPolicy
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.returns import ends_of, gae
from roboloop.algos.learner.trainer import HasTrainer, Trainer, make_learner, running_norm
from roboloop.algos.policy import ActionScale
from roboloop.algos.spec import AlgorithmSpec, Setup
from roboloop.core.errors import ConfigError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, EnvSpec, Metrics, Rollout, State
from roboloop.data.rollouts import is_step
from roboloop.nets.conv import ConvNet
from roboloop.nets.normalize import FollowedNorm, RunningNorm

MakeOnPolicy = Callable[[Any, EnvSpec, int], OnPolicy]
"""From config, spec and frame stack; usually the class."""
PIXEL_VARIANCE_FLOOR = 1.0
"""A channel that hardly changes is not blown up: deviations below one grey level count as one."""
RETURN_VARIANCE_FLOOR = 1e-4
PIXEL_ROWS = 8
"""Pictures per update that the running statistics of pixels look at: each has thousands of them."""
ADVANTAGE_EPS = 1e-8


class RolloutLearner(HasTrainer):
    """The Algorithm: ``update`` takes all gradient steps on one rollout ``[rollout_steps, num_envs]``."""

    def __init__(
        self, make: MakeOnPolicy, cfg: Any, spec: EnvSpec, frame_stack: int, num_envs: int, seed: int,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        learner = make_learner(make, cfg, spec, frame_stack, seed, device)
        assert isinstance(learner, OnPolicy)
        self.cfg = cfg = learner.cfg
        cfg.check_split(num_envs)
        self.num_updates, self.progress, self._num_envs = 0, 0.0, num_envs
        inputs = learner.inputs(num_envs)
        self._units = inputs["index"].shape[0]
        self.trainer = Trainer(learner, self._units, inputs, device, running_norm(learner, cfg.normalize_obs))
        self.net, self._learner = learner.net, learner
        self._scale, self._rng = ActionScale(spec), stream(seed, "minibatches")
        self._lr = make_learning_rate(cfg)
        self._norms = self._make_norms()

    def _make_norms(self) -> dict[str, RunningNorm]:
        """Return what learns the scale of returns and of each picture's pixels."""
        norms: dict[str, RunningNorm] = {}
        if self.cfg.normalize_obs:
            for i, picture in enumerate(self._learner.fields.pictures):
                norms[f"pixels{i}"] = RunningNorm(picture.channels, PIXEL_VARIANCE_FLOOR)
        if self.cfg.normalize_returns:
            norms["returns"] = RunningNorm(1, RETURN_VARIANCE_FLOOR)
        return norms

    def keep_obs_norm(self, numbers: Array) -> None:
        """Scale observations by these numbers from now on: what an actor that was taken over sees must not move."""
        norm = FollowedNorm(numbers.size // 2)
        norm.numbers[:] = numbers.reshape(-1)
        self.trainer.norm = self.policy.norm = norm

    def update(self, rollout: Rollout) -> Metrics:
        """Learn from a rollout, in ``epochs`` passes of ``minibatches`` gradient steps."""
        self._check_shape(rollout)
        lag = self.num_updates - rollout.version
        is_fresh = (lag <= self.cfg.max_policy_lag).astype(np.float32)
        lr = self._lr.at(self.progress)
        metrics = {"lr": lr, "lag_mean": float(lag.mean()), "lag_max": float(lag.max())}
        metrics["stale_fraction"] = 1.0 - float(is_fresh.mean())
        if not is_fresh.any():
            return metrics  # nothing is learned, not even scales: a policy of this version stays what it is
        metrics["explained_variance"] = self._load_rollout(rollout, is_fresh)
        passes = [torch.stack(list(self._pass(lr / self.cfg.lr))) for _ in range(self.cfg.epochs)]
        kl = self._named(passes[-1]).get("approx_kl")
        if kl is not None:
            self._lr.after_update(kl)
        self._learn_norms(rollout)
        self.policy.version = self.num_updates
        return metrics | self._named(torch.cat(passes))

    def _named(self, said: Tensor) -> dict[str, float]:
        """Return the means of what gradient steps said ``[steps, ...]`` by name."""
        *values, norm = said.mean(0).tolist()
        return self.trainer.named(self.trainer.steps, values) | {"grad_norm": norm}

    def _check_shape(self, rollout: Rollout) -> None:
        wanted = (self.cfg.rollout_steps, self._num_envs)
        if rollout.reward.shape != wanted:
            kind = type(self._learner).__name__
            raise ConfigError(
                f"{kind} was built for rollouts of {wanted} steps and environments, not {rollout.reward.shape}"
            )

    def _load_rollout(self, rollout: Rollout, is_fresh: Array) -> float:
        """Write the rollout to shared memory; return how much of the returns the acting policy's values explain."""
        cfg, trainer = self.cfg, self.trainer
        ends, is_learned = ends_of(rollout), is_step(rollout)
        targets = gae(rollout.reward, rollout.value, ends, cfg.gamma, cfg.gae_lambda)
        if "returns" in self._norms:
            self._rescale_values(targets.value[is_learned])
        mean, std = self._learner.return_norm.cpu().numpy()
        old_value = rollout.value[:-1]
        facts = {
            "old_log_prob": rollout.log_prob, "old_value": (old_value - mean) / std, "advantage": targets.advantage,
            "target": (targets.value - mean) / std, "is_learned": is_fresh * is_learned,
            "reward": rollout.reward, "is_end": ends.is_end, "end_value": ends.value,
        }  # fmt: skip
        trainer.put("facts", np.stack([facts[name] for name in FACTS], axis=-1))
        trainer.put("action", self._scale.to_unit(rollout.action))
        trainer.put("memory", rollout.memory)
        starts = np.zeros((cfg.rollout_steps + 1, self._num_envs), np.float32)
        starts[1:] = ends.is_end
        trainer.put("starts", starts[: cfg.seen_steps])
        trainer.put_obs("obs", rollout.obs[: cfg.seen_steps], cfg.seen_steps * self._num_envs)
        trainer.send_common()
        spread = float(np.var(targets.value))
        return 1.0 - float(np.var(targets.value - old_value)) / spread if spread else 0.0

    def _pass(self, lr_scale: float) -> Iterator[Tensor]:
        """Take one update per minibatch; yield what each says, and how long its gradient was."""
        trainer = self.trainer
        for index in self._minibatches():
            due = [step for step in trainer.steps if self.num_updates % step.every == 0]
            trainer.put("index", index)
            trainer.draw_noise(self._rng)
            trainer.take(due, self.num_updates, lr_scale)
            self.num_updates += 1
            yield torch.cat((trainer.said(), trainer.grad_norm("net").view(1)))

    def _minibatches(self) -> Iterator[Array]:
        """Yield each minibatch's units ``[shards, units]``; those in which every row is stale are left out.

        Statistics over a minibatch are computed here, where all its rows are known.
        """
        cfg, facts = self.cfg, self.trainer.arrays["inputs/facts"]
        counts, advantage = (facts[..., FACTS.index(name)] for name in ("is_learned", "advantage"))
        if not cfg.by_column:
            counts, advantage = counts.reshape(1, -1), advantage.reshape(1, -1)
        for index in self._rng.permutation(counts.shape[1]).reshape(cfg.minibatches, cfg.shards, self._units):
            count, some = counts[:, index.ravel()], advantage[:, index.ravel()].astype(np.float64)
            if total := float(count.sum()):
                mean = float((some * count).sum()) / total
                std = float(np.sqrt((np.square(some - mean) * count).sum() / total))
                of_each = cfg.shards / total, mean, std + ADVANTAGE_EPS
                self.trainer.put("counts", np.array([of_each] * cfg.shards, np.float32))
                yield index

    @torch.no_grad()
    def _rescale_values(self, returns: Array) -> None:
        """Learn the scale of returns, and change the value layer so that it still says the same (arXiv:1602.07714)."""
        norm, live, layer = self._norms["returns"], self._learner.return_norm, self.net.value
        is_first, (old_mean, old_std) = norm.is_empty, live.tolist()
        norm.update(returns.reshape(-1, 1))
        mean, std = float(norm.numbers[0]), float(1.0 / norm.numbers[1])
        if not is_first:  # an untrained layer has said nothing yet: kept at zero, it would begin far from all returns
            layer.weight.mul_(old_std / std)
            layer.bias.mul_(old_std / std).add_((old_mean - mean) / std)
        live.copy_(torch.tensor([mean, std]))

    def _learn_norms(self, rollout: Rollout) -> None:
        """Learn the scale of observations, after learning from them: they were acted upon by the scale before."""
        fields = self._learner.fields
        self.trainer.norm.update(fields.vector(rollout.obs[:-1], rollout.num_steps))
        for i, (picture, net) in enumerate(zip(fields.pictures, self.net.actor.pictures, strict=True)):
            if f"pixels{i}" in self._norms:
                some, norm = rollout.obs[0, :PIXEL_ROWS], self._norms[f"pixels{i}"]
                norm.update(fields.pixels(some, len(some), picture).transpose(0, 2, 3, 1).reshape(-1, picture.channels))
                assert isinstance(net, ConvNet)
                net.pixel_norm.copy_(torch.from_numpy(norm.numbers).view(2, -1))

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        return {
            **self.trainer.state(),
            "norms": {name: norm.state() for name, norm in self._norms.items()},
            "lr": self._lr.state(),
            "minibatch_rng": get_rng_state(self._rng),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        self.trainer.load(state)
        for name, norm in self._norms.items():
            norm.load(state["norms"][name])
        self._lr.load(state["lr"])
        set_rng_state(self._rng, state["minibatch_rng"])
        self.num_updates = self.policy.version = int(state["num_updates"])


def _make(learner: MakeOnPolicy, setup: Setup) -> RolloutLearner:
    return RolloutLearner(
        learner, setup.config, setup.spec, setup.frame_stack, setup.num_envs, setup.seed, setup.device
    )


def load_policy(learner: MakeOnPolicy, setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    return LearnerPolicy.from_state(learner(setup.config, setup.spec, setup.frame_stack), state)


def record_on_policy(name: str, config: Callable[[], Any], learner: MakeOnPolicy) -> AlgorithmSpec:
    """Return the record by which a run finds a learner that learns from rollouts."""
    return AlgorithmSpec(
        name, config, "rollouts", partial(_make, learner), partial(load_policy, learner), check=check_split
    )
