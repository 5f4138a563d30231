"""Soft actor-critic (arXiv:1812.05905): twin critics, learned temperature, gradients of a batch computed in shards.

Of one task or of several: then a batch lies task by task, each task has its own temperature, and the config says what
the networks share (``docs/algorithms/mtsac.md``). From vectors or from pictures: then actor and critics share
convolutions (``docs/algorithms/pixel-sac.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from roboloop.algos.learner.adam import MAX_ADAM_STEP
from roboloop.algos.learner.learning_rate import Scheduled
from roboloop.algos.learner.shards import ShardPool
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.losses import task_weights
from roboloop.algos.mtsac.multitask import make_reward_scale, tasks_of
from roboloop.algos.mtsac.objectives import NO_EXAMPLES, ExampleTerms
from roboloop.algos.mtsac.shard import SACShape
from roboloop.algos.mtsac.temperature import FixedTemperature, LearnedTemperature, Temperature
from roboloop.algos.policy import ActionScale, ActorPolicy
from roboloop.algos.sac.config import SACConfig, SACSettings
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.fields import PICKS
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Batch, BatchSpec, EnvSpec, Metrics, State
from roboloop.nets.actors import PLAIN, ActorKind
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Layout, Views, clone, restore, under
from roboloop.nets.mlp import initialise
from roboloop.nets.normalize import Identity, Normalizer, RunningNorm
from roboloop.nets.observations import Fields
from roboloop.nets.vision import VisionSpec, conv_name

NETS = ("critics", "targets")
"""Networks that only training needs; the actor is saved with the policy, which can be loaded alone."""
MOMENTS = {"actor": ("actor_m", "actor_v"), "critics": ("critics_m", "critics_v")}
INPUTS = (
    "obs_pair", "noise_pair", "action", "reward", "discount", "alpha", "weight", "value_cap", "step",
    "lr_scale",
)  # fmt: skip


class MultiTaskSAC:
    """The Algorithm: ``update`` takes one step of critics, actor, temperature and targets."""

    def __init__(
        self,
        cfg: SACSettings,
        spec: EnvSpec,
        frame_stack: int,
        seed: int,
        device: str = "cpu",
        examples: ExampleTerms = NO_EXAMPLES,
        actor: ActorKind = PLAIN,
    ) -> None:
        cfg.check()
        if isinstance(cfg, SACConfig) and cfg.net != "mlp":
            raise ConfigError(f"net {cfg.net!r} is for sac that learns one task from vectors; here it is 'mlp'")
        refuse_what_it_cannot_take(spec)
        self.cfg = cfg
        self._tasks = tasks_of(cfg, spec, frame_stack)
        num_tasks = max(1, len(self._tasks))
        self._fields = Fields.of(spec, frame_stack)
        sight = make_sight(cfg, self._fields)
        shift_px = make_shift_px(cfg, spec, sight)
        self.needs = BatchSpec(cfg.batch_size, cfg.n_step, cfg.gamma, frame_stack, num_tasks, shift_px)
        self._convs = sight.convs if sight else ()
        self._shape = SACShape(cfg, self._fields.vector_dim, spec.action_dim, num_tasks, examples, self._convs, actor)
        self._phases, self._names = self._shape.phases, self._shape.metrics
        self._pool = ShardPool(self._shape, self._shape.memory().size, cfg.shards, cfg.processes, device)
        self._mem = self._shape.views(self._pool.memory)
        # what changes at each update is written through numpy: in place on the CPU, staged for other devices
        self._host = {name: self._mem[name].cpu().numpy() for name in (*INPUTS, *self._shape.picture_names)}
        self._layouts: dict[str, Layout] = {
            "actor": self._shape.actor, "critics": self._shape.critics, "targets": self._shape.targets
        }  # fmt: skip
        for net, own in (("actor", "actor"), ("critics", "targets")):  # those that targets have too
            initialise(self._layouts[own].views(self._mem[net]), stream(seed, f"sac-init-{net}"))
        self._mem["targets"].copy_(self._mem["critics"][: len(self._mem["targets"])])
        conv_rng = stream(seed, "sac-init-convolutions")
        for i, conv in enumerate(self._convs):
            conv.initialise(under(conv_name(i), self.critic_weights), conv_rng)
        self._noise_rng = stream(seed, "sac-noise")
        self._scale = ActionScale(spec)
        self._temperatures = [make_temperature(cfg, spec.action_dim) for _ in range(num_tasks)]
        self._scaled_reward = make_reward_scale(cfg, num_tasks)
        obs_dim = self._shape.obs_dim
        self._norm: Normalizer = RunningNorm(obs_dim) if cfg.normalize_obs and obs_dim else Identity()
        weights = self._layouts["actor"].views(self._mem["actor"])
        weights |= {name: self.critic_weights[name] for name in self._shape.conv_shapes}
        self._policy = ActorPolicy(weights, spec, self._norm, sight, actor)
        self._lr_scale = Scheduled(1.0, 0.0 if cfg.lr_schedule == "linear" else 1.0)
        self.num_updates = 0
        self.progress = 0.0

    @property
    def policy(self) -> ActorPolicy:
        """The live policy: each update changes it."""
        return self._policy

    @property
    def critic_weights(self) -> Views:
        """The live critics, with the convolutions they share (``nets/vision.py``): each update changes them."""
        return self._layouts["critics"].views(self._mem["critics"])

    def update(self, batch: Batch, value_caps: Sequence[float] = ()) -> Metrics:
        """Take one gradient step on a batch (algorithm 1 of the paper).

        Where examples of success bound values, ``value_caps`` are the bounds of each task's other rows.
        """
        self._host["value_cap"][: len(value_caps)] = value_caps
        self._load_batch(batch)
        self._pool.run(self._phases)
        self.num_updates += 1
        self._policy.version = self.num_updates
        metrics = dict(zip(self._names, self._mem["metrics"].sum(0).tolist(), strict=False))
        entropies = (self._mem["entropy"].sum(0) * self._shape.num_tasks).tolist()
        metrics["alpha"] = float(np.mean(self._alphas))
        for task, alpha, entropy in zip(self._tasks, self._alphas, entropies, strict=False):
            metrics |= {f"alpha/{task}": alpha, f"entropy/{task}": entropy}
        if self._shape.examples.rows:
            values = self._mem["example_value"].sum(0).tolist()
            metrics |= {f"example_value/{task}": value for task, value in zip(self._tasks, values, strict=True)}
        for temperature, entropy in zip(self._temperatures, entropies, strict=True):
            temperature.update(entropy)
        return metrics

    @property
    def _alphas(self) -> list[float]:
        return [temperature.alpha for temperature in self._temperatures]

    def _put(self, target: Array, rows: Array) -> None:
        """Hand rows, which lie task by task, to the shards: each gets as many of each task."""
        tasks, shards = self._shape.num_tasks, self.cfg.shards
        parts = rows.reshape(tasks, shards, len(rows) // (tasks * shards), *rows.shape[1:]).swapaxes(0, 1)
        np.copyto(target.reshape(parts.shape), parts)

    def _load_batch(self, batch: Batch) -> None:
        host = self._host
        for which, seen in enumerate((batch.obs, batch.next_obs)):
            self._load_pictures(seen, which)
        obs, next_obs = (self._fields.vector(o, self.cfg.batch_size) for o in (batch.obs, batch.next_obs))
        self._norm.update(obs)
        self._put(host["obs_pair"][:, 0], self._norm(obs))
        self._put(host["obs_pair"][:, 1], self._norm(next_obs))
        self._put(host["action"], self._scale.to_unit(batch.action))
        self._put(host["reward"], self._scaled_reward(batch.reward))
        self._put(host["discount"], batch.discount)
        # all noise is drawn here, so that the shards are pure functions of what they are given
        self._noise_rng.standard_normal(out=host["noise_pair"], dtype=np.float32)
        host["step"][0] = min(self.num_updates + 1, MAX_ADAM_STEP)
        host["lr_scale"][0] = self._lr_scale.at(self.progress)
        host["alpha"][:] = self._alphas
        if isinstance(self.cfg, MTSACConfig) and self.cfg.task_weights == "temperature":
            host["weight"][:] = task_weights(self._alphas)
        if self._pool.memory.device.type != "cpu":
            for name, values in host.items():
                self._mem[name].copy_(torch.from_numpy(values))

    def _load_pictures(self, obs: Array, which: int) -> None:
        """Write the pictures of one of both states as blocks ``[shard, which, row, ...]``."""
        for name, conv, picture in zip(self._shape.picture_names, self._convs, self._fields.pictures, strict=True):
            pixels = self._fields.pixels(obs, self.cfg.batch_size, picture)
            for shard, part in enumerate(np.split(pixels, self.cfg.shards)):
                conv.to_blocks(part, self._host[name][shard, which])

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        state: State = {net: clone(self._layouts[net].views(self._mem[net])) for net in NETS}
        for net, moments in MOMENTS.items():
            state[f"{net}_adam"] = {m: clone(self._layouts[net].views(self._mem[m])) for m in moments}
        state["policy"] = self._policy.state()
        temperatures = [temperature.state() for temperature in self._temperatures]
        state["temperature"] = temperatures if self._tasks else temperatures[0]
        state["reward_scale"] = self._scaled_reward.state()
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
        temperatures = state["temperature"] if self._tasks else [state["temperature"]]
        for temperature, saved in zip(self._temperatures, temperatures, strict=True):
            temperature.load(saved)
        self._scaled_reward.load(state.get("reward_scale", {}))
        set_rng_state(self._noise_rng, state["noise_rng"])
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


def refuse_what_it_cannot_take(spec: EnvSpec) -> None:
    """Raise ConfigError for actions that are choices, and for observations that offer picks."""
    if not spec.is_continuous:
        raise ConfigError("SAC needs continuous actions; PPO takes choices: --algo ppo")
    names = spec.obs_dtype.names or ()
    if PICKS in names:
        raise ConfigError(
            f"SAC takes pictures and vectors, not the fields {', '.join(names)}; --algo pick chooses among picks"
        )


def make_sight(cfg: SACSettings, fields: Fields) -> VisionSpec | None:
    """Return how pictures are seen, or None where observations have none."""
    if not fields.pictures:
        return None
    if not isinstance(cfg, SACConfig):
        raise ConfigError("mtsac learns from vectors, not from pictures; SAC takes both: --algo sac")
    convs = tuple(
        ConvSpec(picture[1:], cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, 0, "relu")
        for picture in fields.pictures
    )
    return VisionSpec(fields.frames, convs)


def make_shift_px(cfg: SACSettings, spec: EnvSpec, sight: VisionSpec | None) -> int:
    """Return by how much sampled pictures are shifted."""
    if sight is None or not isinstance(cfg, SACConfig):
        return 0
    for _, height, width in (conv.picture for conv in sight.convs):
        if cfg.shift_px >= min(height, width):
            raise ConfigError(f"shift_px {cfg.shift_px} leaves nothing of pictures of {height}x{width}: try 4")
    if cfg.shift_px and spec.protocol.get("pick") == "point":
        raise ConfigError("shift_px moves pictures and not the places picked in them: set it to 0")
    return cfg.shift_px


def make_temperature(cfg: SACSettings, action_dim: int) -> Temperature:
    """Return the temperature that the config asks for; the default target is Haarnoja's -dim(A)."""
    if cfg.alpha is not None:
        return FixedTemperature(cfg.alpha)
    target_entropy = -float(action_dim) if cfg.target_entropy is None else cfg.target_entropy
    return LearnedTemperature(cfg.initial_alpha, target_entropy, cfg.alpha_lr)


def make(setup: Setup) -> MultiTaskSAC:
    """Return SAC for a run."""
    return MultiTaskSAC(setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> ActorPolicy:
    """Return the policy of a saved state."""
    policy = ActorPolicy.from_state(state["policy"], setup.spec)
    policy.version = int(state["num_updates"])
    return policy
