"""Soft actor-critic (arXiv:1812.05905): twin critics, learned temperature, gradients of a batch computed in shards."""

from __future__ import annotations

import math

import numpy as np
import torch

from roboloop.algos.adam import MAX_ADAM_STEP
from roboloop.algos.config import SACConfig
from roboloop.algos.policy import ActionScale, ActorPolicy
from roboloop.algos.sac_shard import METRICS, SACShape, SACShard
from roboloop.algos.shards import ShardPool
from roboloop.algos.temperature import Fixed, Learned, Temperature
from roboloop.core.errors import ConfigError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Batch, BatchSpec, EnvSpec, Metrics, State
from roboloop.nets.flat import Layout, clone, restore
from roboloop.nets.mlp import initialise
from roboloop.nets.normalize import Identity, Normalizer, RunningNorm

NETS = ("critics", "targets")
"""Networks that only training needs; the actor is saved with the policy, which can be loaded alone."""
MOMENTS = {"actor": ("actor_m", "actor_v"), "critics": ("critics_m", "critics_v")}
INPUTS = ("obs_pair", "noise_pair", "action", "reward", "discount", "alpha", "step")


class SAC:
    """The Algorithm: ``update`` takes one step of critics, actor, temperature and targets."""

    def __init__(self, cfg: SACConfig, spec: EnvSpec, frame_stack: int, seed: int, device: str = "cpu") -> None:
        cfg.check()
        refuse_what_only_ppo_takes(spec)
        self.cfg = cfg
        self.needs = BatchSpec(cfg.batch_size, cfg.n_step, cfg.gamma, frame_stack)
        self._shape = SACShape(cfg, frame_stack * math.prod(spec.obs_shape), spec.action_dim)
        self._pool = ShardPool(self._shape, self._shape.memory().size, cfg.shards, cfg.processes, device)
        self._mem = self._shape.memory().views(self._pool.memory)
        # what changes at each update is written through numpy: in place on the CPU, staged for other devices
        self._host = {name: self._mem[name].cpu().numpy() for name in INPUTS}
        self._layouts: dict[str, Layout] = {
            "actor": self._shape.actor, "critics": self._shape.critics, "targets": self._shape.critics
        }  # fmt: skip
        for net in ("actor", "critics"):
            initialise(self._layouts[net].views(self._mem[net]), stream(seed, f"sac-init-{net}"))
        self._mem["targets"].copy_(self._mem["critics"])
        self._noise_rng = stream(seed, "sac-noise")
        self._scale = ActionScale(spec)
        self._temperature = make_temperature(cfg, spec.action_dim)
        self._norm: Normalizer = RunningNorm(self._shape.obs_dim) if cfg.normalize_obs else Identity()
        self._policy = ActorPolicy(self._layouts["actor"].views(self._mem["actor"]), spec, self._norm)
        self.num_updates = 0
        self.progress = 0.0  # nothing here depends on it

    @property
    def policy(self) -> ActorPolicy:
        """The live policy: each update changes it."""
        return self._policy

    def update(self, batch: Batch) -> Metrics:
        """Take one gradient step on a batch (algorithm 1 of the paper)."""
        self._load_batch(batch)
        self._pool.run(SACShard.PHASES)
        self.num_updates += 1
        self._policy.version = self.num_updates
        metrics = dict(zip(METRICS, self._mem["metrics"].sum(0).tolist(), strict=False))
        metrics["alpha"] = self._temperature.alpha
        self._temperature.update(metrics["entropy"])
        return metrics

    def _load_batch(self, batch: Batch) -> None:
        host, lead = self._host, (self.cfg.shards, self._shape.rows)
        obs, next_obs = (o.reshape(self.cfg.batch_size, -1) for o in (batch.obs, batch.next_obs))
        self._norm.update(obs)
        np.copyto(host["obs_pair"][:, 0], self._norm(obs).reshape(*lead, -1))
        np.copyto(host["obs_pair"][:, 1], self._norm(next_obs).reshape(*lead, -1))
        np.copyto(host["action"], self._scale.to_unit(batch.action).reshape(*lead, -1))
        np.multiply(batch.reward.reshape(lead), self.cfg.reward_scale, out=host["reward"], casting="same_kind")
        np.copyto(host["discount"], batch.discount.reshape(lead))
        # all noise is drawn here, so that the shards are pure functions of what they are given
        self._noise_rng.standard_normal(out=host["noise_pair"], dtype=np.float32)
        host["step"][0] = min(self.num_updates + 1, MAX_ADAM_STEP)
        host["alpha"][0] = self._temperature.alpha
        if self._pool.memory.device.type != "cpu":
            for name, values in host.items():
                self._mem[name].copy_(torch.from_numpy(values))

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        state: State = {net: clone(self._layouts[net].views(self._mem[net])) for net in NETS}
        for net, moments in MOMENTS.items():
            state[f"{net}_adam"] = {m: clone(self._layouts[net].views(self._mem[m])) for m in moments}
        state["policy"] = self._policy.state()
        state["temperature"] = self._temperature.state()
        state["noise_rng"] = get_rng_state(self._noise_rng)
        state["num_updates"] = self.num_updates
        return state

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        sources = {"actor": state["policy"]["net"]} | {net: state[net] for net in NETS}
        layouts = dict(self._layouts)
        for net, moments in MOMENTS.items():
            for moment in moments:
                sources[moment], layouts[moment] = state[f"{net}_adam"][moment], self._layouts[net]
        for name, source in sources.items():
            restore(layouts[name].views(self._mem[name]), source, name)
        self._norm.load(state["policy"]["norm"])
        self._temperature.load(state["temperature"])
        set_rng_state(self._noise_rng, state["noise_rng"])
        self.num_updates = self._policy.version = int(state["num_updates"])

    def wait_until_ready(self) -> None:
        """Wait for the helper processes; for benchmarks, since training starts without them."""
        self._pool.wait_until_ready()

    def close(self) -> None:
        """Stop the helper processes and release their memory."""
        self._pool.close()


def refuse_what_only_ppo_takes(spec: EnvSpec) -> None:
    """Raise ConfigError for choices and for observations with named fields."""
    if not spec.is_continuous:
        raise ConfigError("SAC needs continuous actions; PPO takes choices: --algo ppo")
    if spec.obs_dtype.names is not None:
        fields = ", ".join(spec.obs_dtype.names)
        raise ConfigError(f"SAC needs plain observations, not the fields {fields}; PPO takes them: --algo ppo")


def make_temperature(cfg: SACConfig, action_dim: int) -> Temperature:
    """Return the temperature that the config asks for; the default target is Haarnoja's -dim(A)."""
    if cfg.alpha is not None:
        return Fixed(cfg.alpha)
    target_entropy = -float(action_dim) if cfg.target_entropy is None else cfg.target_entropy
    return Learned(cfg.initial_alpha, target_entropy, cfg.alpha_lr)
