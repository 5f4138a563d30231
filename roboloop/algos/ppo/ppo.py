"""Proximal policy optimisation (arXiv:1707.06347), also over rollouts of older policies: V-trace, staleness mask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from roboloop.algos.learner.adam import MAX_ADAM_STEP
from roboloop.algos.learner.learning_rate import make_learning_rate
from roboloop.algos.learner.shards import ShardPool
from roboloop.algos.learner.staging import Staging
from roboloop.algos.policy import ActionScale
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.policy import PPOModel, PPOPolicy
from roboloop.algos.ppo.returns import ends_of, gae
from roboloop.algos.ppo.shard import FACTS, METRICS, PPOShape, PPOShard
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, EnvSpec, Metrics, Rollout, State
from roboloop.data.rollouts import is_step
from roboloop.nets.flat import clone, restore
from roboloop.nets.layers import as_in_out
from roboloop.nets.normalize import RunningNorm
from roboloop.nets.observations import action_mask

__all__ = ["PPO", "PPOPolicy"]

PIXEL_VARIANCE_FLOOR = 1.0
"""A channel that hardly changes is not blown up: deviations below one grey level count as one."""
RETURN_VARIANCE_FLOOR = 1e-4
PIXEL_ROWS = 8
"""Pictures per update that the running statistics of pixels look at: each has thousands of them."""


class PPO:
    """The Algorithm: ``update`` takes all gradient steps on one rollout ``[rollout_steps, num_envs]``."""

    def __init__(
        self, cfg: PPOConfig, spec: EnvSpec, frame_stack: int, num_envs: int, seed: int, device: str = "cpu"
    ) -> None:
        cfg.check()
        cfg.check_split(num_envs)
        if cfg.kl_uniform_coef and spec.is_continuous:
            raise ConfigError("kl_uniform_coef explores choices, and this environment has none: use entropy_coef")
        self.cfg = cfg
        self._scale = ActionScale(spec)
        self._model = model = PPOModel(cfg, spec, frame_stack)
        self._shape = PPOShape(model, num_envs)
        self._pool = ShardPool(self._shape, self._shape.memory().size, cfg.shards, cfg.processes, device)
        self._mem = self._shape.views(self._pool.memory)
        self._staging = Staging(self._mem)
        model.initialise(self._mem["policy"], stream(seed, "ppo-init"))
        self._views = model.layout.views(self._mem["policy"])
        self._weights = model.net_layout.views(self._views["net"])
        self._rng = stream(seed, "ppo-minibatches")
        self._lr = make_learning_rate(cfg)
        self._norms = self._make_norms()
        self._policy = PPOPolicy(model, self._mem["policy"])
        self.num_updates = 0
        self.progress = 0.0

    def _make_norms(self) -> dict[str, RunningNorm]:
        """Return what learns the running statistics; names are those of the numbers that acting depends on."""
        norms: dict[str, RunningNorm] = {}
        fields = self._model.fields
        if self.cfg.normalize_obs:
            if fields.vector_dim:
                norms["vector_norm"] = RunningNorm(fields.vector_dim)
            for i, picture in enumerate(fields.pictures):
                norms[f"pixel_norm{i}"] = RunningNorm(picture.channels, PIXEL_VARIANCE_FLOOR)
        if self.cfg.normalize_returns:
            norms["return_norm"] = RunningNorm(1, RETURN_VARIANCE_FLOOR)
        return norms

    @property
    def policy(self) -> PPOPolicy:
        """The live policy: each update changes it."""
        return self._policy

    def begin_with(self, weights: Sequence[Array], biases: Sequence[Array], std: float, obs_norm: Array) -> None:
        """Begin with the layers ``[in, out]`` and means of another actor; its scale of observations then stays."""
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            own_bias = self._weights[f"actor.linear{i}.bias"]
            own = as_in_out(self._weights[f"actor.linear{i}.weight"], own_bias)
            own.zero_()
            own[:, : weight.shape[1]] = torch.from_numpy(weight)
            own_bias[: len(bias)] = torch.from_numpy(bias)
        self._model.net.log_std_of(self._weights).bias.fill_(math.log(std))
        if self._norms.pop("vector_norm", None) is not None:  # what the actor sees must not move under it
            self._views["vector_norm"].copy_(torch.from_numpy(obs_norm))

    def update(self, rollout: Rollout) -> Metrics:
        """Learn from a rollout, in ``epochs`` passes of ``minibatches`` gradient steps (algorithm 1 of the paper)."""
        self._check_shape(rollout)
        lag = self.num_updates - rollout.version
        is_fresh = (lag <= self.cfg.max_policy_lag).astype(np.float32)
        lr = self._lr.at(self.progress)
        metrics = dict.fromkeys((*METRICS, "grad_norm", "explained_variance"), 0.0)
        metrics |= {"lr": lr, "lag_mean": float(lag.mean()), "lag_max": float(lag.max())}
        metrics["stale_fraction"] = 1.0 - float(is_fresh.mean())
        if not is_fresh.any():
            return metrics  # nothing is learned, not even scales: a policy of this version stays what it is
        metrics["explained_variance"] = self._load_rollout(rollout, is_fresh)
        self._staging.put("lr", np.float32(lr))
        passes = [self._pass() for _ in range(self.cfg.epochs)]
        self._lr.after_update(float(passes[-1][:, METRICS.index("approx_kl")].mean()))
        self._learn_norms(rollout)
        self._policy.version = self.num_updates
        means = np.concatenate(passes).mean(0).tolist()
        return metrics | dict(zip((*METRICS, "grad_norm"), means, strict=True))

    def _check_shape(self, rollout: Rollout) -> None:
        wanted = (self._shape.steps, self._shape.num_envs)
        if rollout.reward.shape != wanted:
            raise ConfigError(
                f"PPO was built for rollouts of {wanted} steps and environments, not {rollout.reward.shape}"
            )

    def _load_rollout(self, rollout: Rollout, is_fresh: Array) -> float:
        """Write the rollout to shared memory; return how much of the returns the acting policy's values explain."""
        cfg = self.cfg
        ends = ends_of(rollout)
        targets = gae(rollout.reward, rollout.value, ends, cfg.gamma, cfg.gae_lambda)
        is_learned = is_step(rollout)
        if "return_norm" in self._norms:
            self._rescale_values(targets.value[is_learned])
        mean, std = self._policy.norm("return_norm")
        old_value = rollout.value[:-1]
        facts = {
            "old_log_prob": rollout.log_prob, "old_value": (old_value - mean) / std, "advantage": targets.advantage,
            "target": (targets.value - mean) / std, "weight": is_fresh * is_learned,
            "reward": rollout.reward, "is_end": ends.is_end, "end_value": ends.value,
        }  # fmt: skip
        self._staging.put("facts", np.stack([facts[name] for name in FACTS], axis=-1))
        self._staging.put("action", self._scale.to_unit(rollout.action))
        self._staging.put("memory", rollout.memory)
        starts = np.zeros((self._shape.steps + 1, self._shape.num_envs), np.float32)
        starts[1:] = ends.is_end
        self._staging.put("starts", starts[: self._shape.seen_steps])
        self._load_obs(rollout.obs[: self._shape.seen_steps], self._shape.seen_steps * self._shape.num_envs)
        spread = float(np.var(targets.value))
        return 1.0 - float(np.var(targets.value - old_value)) / spread if spread else 0.0

    def _load_obs(self, obs: Array, rows: int) -> None:
        model = self._model
        if model.fields.vector_dim:
            self._staging.put("vector", model.vector(obs, rows, self._policy.norm("vector_norm")))
        if model.fields.mask_dim:
            self._staging.put("mask", np.asarray(action_mask(obs, rows)))
        for i in range(len(model.net.convs)):
            model.write_blocks(obs, rows, i, self._staging.arrays[f"picture{i}"])
            self._staging.send(f"picture{i}")

    def _pass(self) -> Array:
        """Take one gradient step per minibatch; return each one's METRICS and length of the gradient, one row each."""
        rows: list[list[float]] = []
        for index in self._minibatches():
            self._staging.put("index", index)
            self._staging.put("step", np.float32(min(self.num_updates + 1, MAX_ADAM_STEP)))
            self._pool.run(PPOShard.PHASES)
            self.num_updates += 1
            norm = math.sqrt(float(self._mem["squares"][:, 0].sum()))
            rows.append([*self._mem["metrics"][:, : len(METRICS)].sum(0).tolist(), norm])
        return np.array(rows)

    def _minibatches(self) -> Iterator[Array]:
        """Yield each minibatch's units ``[shards, units]``; those in which every row is stale are left out."""
        shape = self._shape
        weight = self._staging.arrays["facts"][:, FACTS.index("weight")].reshape(shape.steps, shape.num_envs)
        per_unit = weight.sum(0) if self.cfg.by_column else weight.reshape(-1)
        order = self._rng.permutation(shape.num_units).reshape(self.cfg.minibatches, self.cfg.shards, shape.units)
        for index in order:
            if count := float(per_unit[index].sum()):
                self._staging.put("one_over_count", np.float32(1.0 / count))
                yield index

    def _rescale_values(self, returns: Array) -> None:
        """Learn the scale of returns, and change the value layer so that it still says the same (arXiv:1602.07714)."""
        norm = self._norms["return_norm"]
        is_first, (old_mean, old_std) = norm.is_empty, self._views["return_norm"].tolist()
        norm.update(returns.reshape(-1, 1))
        mean, std = float(norm.numbers[0]), float(1.0 / norm.numbers[1])
        if not is_first:  # an untrained layer has said nothing yet: kept at zero, it would begin far from all returns
            weight, bias = self._model.net.value_layer(self._weights)
            weight.mul_(old_std / std)
            bias.mul_(old_std / std).add_((old_mean - mean) / std)
        self._views["return_norm"].copy_(torch.tensor([mean, std]))

    def _learn_norms(self, rollout: Rollout) -> None:
        """Learn the scale of observations, after learning from them: they were acted upon by the scale before."""
        fields = self._model.fields
        for name, norm in self._norms.items():
            if name == "vector_norm":
                norm.update(fields.vector(rollout.obs[:-1], rollout.num_steps))
            elif name != "return_norm":
                some = rollout.obs[0, :PIXEL_ROWS]
                pixels = fields.pixels(some, len(some), fields.pictures[int(name.removeprefix("pixel_norm"))])
                norm.update(pixels.transpose(0, 2, 3, 1).reshape(-1, pixels.shape[1]))
            if name != "return_norm":
                self._views[name].copy_(torch.from_numpy(norm.numbers).view(2, -1))

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        layout = self._model.net_layout
        return {
            "policy": self._policy.state(),
            "adam": {name: clone(layout.views(self._mem[name])) for name in ("m", "v")},
            "norms": {name: norm.state() for name, norm in self._norms.items()},
            "lr": self._lr.state(),
            "minibatch_rng": get_rng_state(self._rng),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        layout = self._model.net_layout
        self._policy.load(state["policy"])
        for name in ("m", "v"):
            restore(layout.views(self._mem[name]), state["adam"][name], name)
        for name, norm in self._norms.items():
            norm.load(state["norms"][name])
        self._lr.load(state["lr"])
        set_rng_state(self._rng, state["minibatch_rng"])
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


def make(setup: Setup) -> PPO:
    """Return PPO for a run."""
    return PPO(setup.config, setup.spec, setup.frame_stack, setup.num_envs, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> PPOPolicy:
    """Return the policy of a saved state."""
    policy = PPOPolicy.from_state(state["policy"], setup.spec)
    policy.version = int(state["num_updates"])
    return policy
