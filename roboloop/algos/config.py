"""Configs of the algorithms: frozen, defaults in one place, contradictions raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roboloop.algos.limits import above_zero, at_least_one, at_most, has_layers, not_negative, within_one
from roboloop.core.errors import ConfigError

Activation = Literal["tanh", "relu", "elu"]
Core = Literal["none", "gru", "lstm"]


@dataclass(frozen=True)
class SACSettings:
    """What soft actor-critic needs for any number of tasks."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    layer_norm: bool = False
    """Normalise hidden layers before each ReLU."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation; for units that differ, such as metres and radians."""
    gamma: float = 0.99
    """Discount per environment step."""
    tau: float = 0.005
    """Fraction by which the target critics follow the critics at each update."""
    actor_lr: float = 3e-4
    """Adam step size of the actor."""
    critic_lr: float = 3e-4
    """Adam step size of the critics."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """'linear': step sizes of actor and critics fall to zero over training."""
    alpha_lr: float = 3e-4
    """Adam step size of the logarithm of the temperature."""
    batch_size: int = 256
    """Transitions per update."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    alpha: float | None = None
    """Fixed temperature; None learns it."""
    initial_alpha: float = 1.0
    """Learned temperature at the start; 1.0 explores widely until the critics are of use."""
    target_entropy: float | None = None
    """Entropy the learned temperature holds, in nats; None means minus the number of action dimensions."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning."""
    max_grad_norm: float = 0.0
    """Longest gradient of the actor, and of all critics; 0 is not limited."""
    num_critics: int = 2
    """Critics whose minimum is trusted."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = 2
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "batch_size", "n_step", "num_critics", "shards", "processes")
        at_most(self, batch_size=10**7, n_step=10_000, num_critics=1_000, shards=1_000, processes=1_000)
        above_zero(self, "actor_lr", "critic_lr", "alpha_lr", "initial_alpha")
        within_one(self, "gamma", "tau")
        not_negative(self, "max_grad_norm")
        has_layers(self, "hidden")
        if self.alpha is not None and self.alpha < 0:
            raise ConfigError(f"alpha must not be negative, not {self.alpha}")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")


@dataclass(frozen=True)
class SACConfig(SACSettings):
    """Soft actor-critic with learned temperature, arXiv:1812.05905."""

    name: Literal["sac"] = "sac"
    """Which algorithm this section configures."""
    conv_channels: tuple[int, ...] = (32, 32, 32)
    """Channels of the convolutions that read pictures; actor and critics share them, and the critics train them."""
    conv_kernels: tuple[int, ...] = (4, 3, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 1)
    """Their strides, in pixels."""
    feature_dim: int = 50
    """Numbers to which actor and critics each narrow what the convolutions say."""
    shift_px: int = 4
    """Sampled pictures are shifted by up to so many pixels either way (DrQ, arXiv:2004.13649); 0 leaves them."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        check_convs(self)
        at_least_one(self, "feature_dim")
        not_negative(self, "shift_px")


@dataclass(frozen=True)
class MTSACConfig(SACSettings):
    """Soft actor-critic for a set of tasks: equal rows and a temperature for each (docs/algorithms/mtsac.md)."""

    name: Literal["mtsac"] = "mtsac"
    """Which algorithm this section configures."""
    net: Literal["heads", "plain", "soft"] = "heads"
    """'heads' = ``hidden`` layers that all tasks share, then layers of each task's own; 'plain' = one network that
    reads the task from its input; 'soft' = modules, mixed anew for each state and task (arXiv:2003.13661)."""
    head_hidden: tuple[int, ...] = (256,)
    """Widths of the hidden layers of each head; may be empty."""
    modules: int = 2
    """With net 'soft': modules per layer."""
    module_layers: int = 2
    """With net 'soft': layers of modules."""
    module_width: int = 256
    """With net 'soft': units of a module."""
    gate_hidden: tuple[int, ...] = (256, 256)
    """With net 'soft': widths of the gate's layers; ``hidden`` are those of the state's embedding."""
    routing: Literal["soft", "hard"] = "soft"
    """With net 'soft': mix all modules that feed one, or take the likeliest alone; gradients are the mixture's."""
    task_weights: Literal["equal", "temperature"] = "equal"
    """'temperature' weighs losses by K softmax(-log alpha): tasks that still explore pull less."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of their task's, when they are sampled."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        at_least_one(self, "module_width")
        if self.head_hidden:
            has_layers(self, "head_hidden")
        if self.net == "soft":
            has_layers(self, "gate_hidden")
            for name in ("modules", "module_layers"):
                if getattr(self, name) < 2:
                    raise ConfigError(f"{name} must be at least 2, not {getattr(self, name)}")
            at_most(self, modules=1_000, module_layers=1_000)
            if self.layer_norm:
                raise ConfigError("layer_norm is not for net 'soft'")
        if self.task_weights == "temperature" and self.alpha is not None:
            raise ConfigError("task_weights 'temperature' needs learned temperatures: leave alpha out")


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation, arXiv:1707.06347; with ``vtrace`` also for experience of older policies (APPO)."""

    name: Literal["ppo"] = "ppo"
    """Which algorithm this section configures."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for vectors; beside pictures, of the layers that read the vector field."""
    activation: Activation | None = None
    """Between layers; None means tanh, or elu where there are pictures."""
    shared_trunk: bool = False
    """Let policy and value share hidden layers; with pictures or a recurrent core they always do."""
    conv_channels: tuple[int, ...] = (32, 64, 128)
    """Channels of the convolutions that read pictures."""
    conv_kernels: tuple[int, ...] = (8, 4, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 2)
    """Their strides, in pixels; where one divides the first window, pictures are read in blocks, which is faster."""
    conv_features: int = 512
    """Width of the layer that follows the convolutions."""
    core: Core = "none"
    """Recurrent core that remembers within an episode; trained through whole rollouts."""
    core_size: int = 512
    """Units of the recurrent core."""
    state_dependent_std: bool = False
    """Let the network say the deviation of continuous actions; else it is one learned number per action."""
    initial_std: float = 1.0
    """Deviation of continuous actions at the start, where 1.0 is half the range of an action."""
    rollout_steps: int = 128
    """Steps of each environment per update."""
    batch_envs: int | None = None
    """Rollouts per update, from whichever environments are ready first; None waits for all."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 4
    """Gradient steps per pass."""
    gamma: float = 0.99
    """Discount per environment step."""
    gae_lambda: float = 0.95
    """Trust in long returns: 0 looks one step ahead, 1 to the end of the rollout."""
    clip: float = 0.2
    """How far the probability of an action may move in one update, as a ratio."""
    value_clip: float | None = None
    """How far a value may move in one update, in units of the value network; None is not limited."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the policy's entropy."""
    kl_uniform_coef: float = 0.0
    """Weight of the symmetric divergence of choices from uniform ones: explores, and never lets a choice die out."""
    max_grad_norm: float = 0.5
    """Longest gradient; 0 is not limited."""
    lr: float = 3e-4
    """Adam step size."""
    lr_schedule: Literal["constant", "linear", "kl"] = "constant"
    """How the step size changes: not, down to zero at the end of training, or to hold ``target_kl``."""
    target_kl: float = 0.01
    """Divergence from the acting policy in an update's last pass that the ``kl`` schedule holds."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation; pictures per channel."""
    normalize_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 in each minibatch."""
    normalize_returns: bool = False
    """Learn values in units of the running deviation of returns."""
    vtrace: bool = False
    """Correct returns for the lag between acting and learning (V-trace, arXiv:1802.01561)."""
    vtrace_rho: float = 1.0
    """Largest importance weight of a step's own surprise: decides towards which policy's values V-trace goes."""
    vtrace_c: float = 1.0
    """Largest importance weight with which later surprises are passed back."""
    max_policy_lag: int = 1000
    """Experience of a policy that is older by more gradient steps is not learned from."""
    shards: int = 2
    """Parts of a minibatch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = 2
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    @property
    def by_column(self) -> bool:
        """Whether a minibatch is whole rollouts of some environments, not single steps of any."""
        return self.vtrace or self.core != "none"

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "rollout_steps", "epochs", "minibatches", "shards", "processes", "core_size",
                     "conv_features")  # fmt: skip
        at_most(self, rollout_steps=10**7, epochs=10_000, minibatches=10**6, shards=1_000, processes=1_000)
        above_zero(self, "lr", "clip", "initial_std", "target_kl", "vtrace_rho", "vtrace_c")
        within_one(self, "gamma", "gae_lambda")
        not_negative(self, "value_coef", "entropy_coef", "kl_uniform_coef", "max_grad_norm", "max_policy_lag")
        has_layers(self, "hidden")
        check_convs(self)
        if self.value_clip is not None and self.value_clip <= 0:
            raise ConfigError(f"value_clip must be above 0 or none, not {self.value_clip}")
        if self.batch_envs is not None and self.batch_envs < 1:
            raise ConfigError(f"batch_envs must be at least 1 or none, not {self.batch_envs}")
        if self.lr_schedule == "kl" and self.epochs == 1:
            raise ConfigError("lr_schedule 'kl' needs epochs above 1: on the first pass nothing has moved yet")

    def check_split(self, num_envs: int) -> None:
        """Raise ConfigError where a rollout of these environments does not fall into equal minibatches and shards."""
        units, what = (num_envs, "environments") if self.by_column else (num_envs * self.rollout_steps, "steps")
        if units % (self.minibatches * self.shards):
            parts = f"{self.minibatches} minibatches of {self.shards} shards"
            raise ConfigError(f"{units} {what} do not fall into {parts}: change algo.minibatches or algo.shards")


@dataclass(frozen=True)
class DTConfig:
    """Decision Transformer, arXiv:2106.01345: actions from what happened and the return that is to come."""

    name: Literal["dt"] = "dt"
    """Which algorithm this section configures."""
    context: int = 20
    """Steps that the transformer sees, of which each is three tokens: return to go, state and action."""
    width: int = 128
    """Numbers per token."""
    layers: int = 3
    """Blocks of attention and dense layers."""
    heads: int = 1
    """Parts into which attention splits a token."""
    dropout: float = 0.1
    """Fraction of numbers dropped while learning, in steps of 1/256."""
    max_timestep: int = 4096
    """Steps of an episode that have an embedding of their own, at most; later ones share the last."""
    conv_channels: tuple[int, ...] = (32, 64, 128)
    """Channels of the convolutions that read pictures."""
    conv_kernels: tuple[int, ...] = (8, 4, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 2)
    """Their strides, in pixels; where one divides the first window, pictures are read in blocks, which is faster."""
    conv_features: int = 512
    """Width of the layer that follows the convolutions."""
    batch_size: int = 64
    """Windows per update."""
    lr: float = 1e-4
    """AdamW step size after the warm-up."""
    weight_decay: float = 1e-4
    """AdamW pull of every weight towards zero, in step sizes."""
    warmup_updates: int = 1000
    """Updates over which the step size grows linearly from zero; the paper's 10 000 are a tenth of its training."""
    max_grad_norm: float = 0.25
    """Longest gradient; 0 is not limited."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = 2
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "width", "layers", "heads", "max_timestep")
        at_most(self, layers=1_000, max_timestep=10**7)
        check_imitation(self)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}")
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} does not split into {self.heads} equal heads")


@dataclass(frozen=True)
class BCConfig:
    """Behaviour cloning: the action of each step from its observation alone."""

    name: Literal["bc"] = "bc"
    """Which algorithm this section configures."""
    context: int = 1
    """Steps per window; all of them are learned from, each by itself."""
    net: Literal["plain", "heads"] = "plain"
    """'plain' = one network; 'heads' = ``hidden`` layers that all tasks share, those of a set or an environment's
    auxiliary ones, then layers of each task's own. A batch then has as many windows of each."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    head_hidden: tuple[int, ...] = (256,)
    """With net 'heads': widths of the hidden layers of each head; may be empty."""
    conv_channels: tuple[int, ...] = (32, 64, 128)
    """Channels of the convolutions that read pictures."""
    conv_kernels: tuple[int, ...] = (8, 4, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 2)
    """Their strides, in pixels; where one divides the first window, pictures are read in blocks, which is faster."""
    conv_features: int = 512
    """Width of the layer that follows the convolutions."""
    batch_size: int = 256
    """Windows per update."""
    lr: float = 3e-4
    """AdamW step size after the warm-up."""
    weight_decay: float = 1e-4
    """AdamW pull of every weight towards zero, in step sizes."""
    warmup_updates: int = 0
    """Updates over which the step size grows linearly from zero."""
    max_grad_norm: float = 0.0
    """Longest gradient; 0 is not limited."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = 2
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        check_imitation(self)
        has_layers(self, "hidden")
        if self.head_hidden:
            has_layers(self, "head_hidden")


def check_task_rows(config: MTSACConfig | BCConfig, num_tasks: int) -> None:
    """Refuse batches that do not fall into as many rows of each task in every shard."""
    if config.batch_size % (num_tasks * config.shards):
        parts = f"{num_tasks} tasks x {config.shards} shards"
        raise ConfigError(f"batch_size {config.batch_size} does not split into {parts} of equal size")


def check_imitation(config: DTConfig | BCConfig) -> None:
    """Refuse what neither of the two can use."""
    at_least_one(config, "context", "batch_size", "shards", "processes", "conv_features")
    at_most(config, context=10**6, batch_size=10**7, shards=1_000, processes=1_000)
    above_zero(config, "lr")
    not_negative(config, "weight_decay", "warmup_updates", "max_grad_norm")
    check_convs(config)
    if config.batch_size % config.shards:
        raise ConfigError(f"batch_size {config.batch_size} does not split into {config.shards} equal shards")


def check_convs(config: DTConfig | BCConfig | PPOConfig | SACConfig) -> None:
    """Refuse convolutions that are not equally many everywhere."""
    for name in ("conv_channels", "conv_kernels", "conv_strides"):
        has_layers(config, name)
    if not len(config.conv_channels) == len(config.conv_kernels) == len(config.conv_strides):
        raise ConfigError("conv_channels, conv_kernels and conv_strides must be equally long")
