"""Settings of soft actor-critic, for one task and for a set of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

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
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError


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
    """Longest gradient of the actor, of all critics, and of convolutions; 0 is not limited."""
    num_critics: int = 2
    """Critics whose minimum is trusted."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""
    replay_kernels: bool = field(default=True, metadata=RESOURCE)
    """Record the kernels of each loss once and run them again, which is faster than autograd: the same bits."""

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
    net: str = "mlp"
    """Network of actor and critics, behind their trunks where there are pictures: 'mlp', 'residual', or your own as
    module:attr, ``(inputs, outputs, config) -> nn.Module``."""
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

    def code(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name code, each with its ``module:attr``."""
        if ":" in self.net:
            yield "net", self.net

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        check_net(self.net)
        check_convs(self)
        at_least_one(self, "feature_dim")
        not_negative(self, "shift_px")


SPEC = AlgorithmSpec(
    "sac", SACConfig, "replay", "roboloop.algos.sac.setup:make", "roboloop.algos.sac.setup:load_policy"
)
