"""Settings that every learner has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from roboloop.algos.limits import (
    above_zero,
    at_least_one,
    at_most,
    check_convs,
    check_net,
    has_layers,
    not_negative,
    within_one,
)
from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class LearnerConfig:
    """What every learner that draws batches from a replay needs; a subclass adds ``name`` and its own."""

    gamma: float = 0.99
    """Discount per environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    batch_size: int = 256
    """Transitions per update."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """'linear': step sizes fall to zero over training."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "batch_size", "n_step", "shards", "processes")
        at_most(self, batch_size=10**7, n_step=10_000, shards=1_000, processes=1_000)
        within_one(self, "gamma")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")


@dataclass(frozen=True)
class RolloutConfig:
    """What every learner that learns from rollouts by an actor-critic needs; a subclass adds ``name`` and its own."""

    net: str = "mlp"
    """Network that reads the vector: 'mlp', 'residual', or your own as module:attr, ``(inputs, outputs, config) ->
    nn.Module``; policy and value read its outputs."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for vectors; beside pictures, of the layers that read the vector field."""
    activation: Literal["tanh", "relu", "elu"] | None = None
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
    core: Literal["none", "gru", "lstm"] = "none"
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
    max_policy_lag: int = 1000
    """Experience of a policy that is older by more gradient steps is not learned from."""
    shards: int = 2
    """Parts of a minibatch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

    @property
    def by_column(self) -> bool:
        """Whether a minibatch is whole rollouts of some environments, not single steps of any."""
        return self.core != "none"

    @property
    def seen_steps(self) -> int:
        """Rows of each environment that the network sees."""
        return self.rollout_steps

    def code(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name code, each with its ``module:attr``."""
        if ":" in self.net:
            yield "net", self.net

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "rollout_steps", "epochs", "minibatches", "shards", "processes", "core_size",
                     "conv_features")  # fmt: skip
        at_most(self, rollout_steps=10**7, epochs=10_000, minibatches=10**6, shards=1_000, processes=1_000)
        above_zero(self, "lr", "initial_std", "target_kl")
        within_one(self, "gamma", "gae_lambda")
        not_negative(self, "max_policy_lag")
        has_layers(self, "hidden")
        check_net(self.net)
        check_convs(self)
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


def check_split(experiment: Any) -> None:
    """Refuse rollouts that do not fall into equal minibatches and shards."""
    rollout: RolloutConfig = experiment.rollout
    rollout.check_split(rollout.batch_envs or experiment.env.num_envs)


@dataclass(frozen=True)
class DatasetConfig:
    """What every learner that draws windows from a dataset needs; a subclass adds ``name`` and its own."""

    context: int = 1
    """Steps per window."""
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
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "context", "batch_size", "shards", "processes")
        at_most(self, context=10**6, batch_size=10**7, shards=1_000, processes=1_000)
        above_zero(self, "lr")
        not_negative(self, "weight_decay", "warmup_updates", "max_grad_norm")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")
